"""Writes the fixtures of tests/profilers with Lightning's SimpleProfiler, from durations that the test adds too."""
import pathlib
import time

from lightning.pytorch.profilers import SimpleProfiler

HERE = pathlib.Path(__file__).parent / "fixtures"
# Nanoseconds.
DURATIONS = {
    "run_training_epoch": [12_345_678_901, 10_000_000_000],
    "run_training_batch": [1_500_000] * 1000 + [2_000_000] * 7,
    "[_TrainingEpochLoop].train_dataloader_next": [10, 20, 25],
    "[Callback]Ü.on_train_start": [1_000_000_000],
    "[LightningModule]Net.on_fit_start": [1_000_000_000],
    "[Strategy]SingleDeviceStrategy.validation_step": [12_345_600_000_000, 999_995_000_000],
    "zero": [0],
}
TOTAL = 20_000_000_000_000
# For the format of numbers alone.
NUMBERS = [0.0, 1.0, 12.0, 9999.5, 9999.94, 9999.96, 12345.0, 99999.6, 123456.0, 0.0001, 0.00001, 0.000123456, 0.00009999996, 1e-300, 1e300, 3.14159265]


def report(stage, extended, durations):
    profiler = SimpleProfiler(extended=extended)
    for name, values in durations.items():
        profiler.recorded_durations[name] = [value / 1e9 for value in values]
    profiler._stage = stage
    profiler.start_time = 0.0
    perf_counter, time.perf_counter = time.perf_counter, lambda: TOTAL / 1e9
    try:
        return profiler.summary()
    finally:
        time.perf_counter = perf_counter


HERE.mkdir(exist_ok=True)
(HERE / "extended.txt").write_text(report("fit", True, DURATIONS))
(HERE / "short.txt").write_text(report("fit", False, DURATIONS))
(HERE / "narrow.txt").write_text(report(None, True, {"ab": [5_000_000_000]}))
(HERE / "empty.txt").write_text(report("validate", True, {}))
(HERE / "numbers.txt").write_text("".join(f"{number.hex()} {number:.5}\n" for number in NUMBERS))
