"""Compares an event file, as TensorBoard reads it, with the calls that wrote it.

    python read_events.py EVENTS CALLS.json

CALLS.json: [{"kind": "scalar" | "histogram" | "image" | "text" | "hparams", "tag", "step", ...}] in order. What each call should
have written is made by torch.utils.tensorboard's own functions. Prints what was compared; exit code 1 and a line on a difference.
"""
import io
import json
import math
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from PIL import Image
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups, plugin_data_pb2
from torch.utils.tensorboard import SummaryWriter, summary


def fail(line):
    sys.exit(f"read_events: {line}")


def close(a, b):
    return a == b or a != a and b != b or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300)


def check_histogram(found, call, bins):
    expected = summary.make_histogram(np.array(call["values"], dtype=np.float64), bins)
    for field in ["min", "max", "num", "sum", "sum_squares"]:
        if not close(getattr(found, field), getattr(expected, field)):
            fail(f"{call['tag']}: {field} {getattr(found, field)} is not {getattr(expected, field)}")
    if list(found.bucket_limit) != list(expected.bucket_limit) or list(found.bucket) != list(expected.bucket):
        fail(f"{call['tag']}: buckets differ")


def check_image(found, call):
    expected = summary.image(call["tag"], torch.tensor(call["values"]).to(getattr(torch, call["dtype"])).reshape(call["shape"]),
                             dataformats="CHW" if len(call["shape"]) == 3 else "HW").value[0].image
    pixels = [np.array(Image.open(io.BytesIO(image.encoded_image_string))) for image in [found, expected]]
    if pixels[0].ndim == 2:  # gray; torch repeats the one channel
        pixels[0] = np.stack([pixels[0]] * 3, 2)
    if (found.height, found.width) != (expected.height, expected.width) or not np.array_equal(*pixels):
        fail(f"{call['tag']}: pixels differ")


def check_hparams(summaries, call):
    data = [plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content) for value in summaries]
    infos = {info.name: info.type for info in data[0].experiment.hparam_infos}
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in data[1].session_start_info.hparams.items()}
    if values != call["values"] or infos.keys() != values.keys():
        fail(f"hparams: {values} are not {call['values']}")
    types = {bool: api_pb2.DATA_TYPE_BOOL, str: api_pb2.DATA_TYPE_STRING, float: api_pb2.DATA_TYPE_FLOAT64, int: api_pb2.DATA_TYPE_FLOAT64}
    if any(infos[name] != types[type(value)] for name, value in call["values"].items()):
        fail("hparams: types differ")
    if [metric.name.tag for metric in data[0].experiment.metric_infos] != call["metrics"]:
        fail("hparams: metrics differ")
    if data[2].session_end_info.status != api_pb2.STATUS_SUCCESS:
        fail("hparams: no end of the session")


def check_tab(path, call):
    """The HParams tab: TensorBoard's own backend finds one session with these values and metrics."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "run").mkdir()
        shutil.copy(path, pathlib.Path(folder) / "run" / "events.out.tfevents.0.host")
        multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(folder)
        multiplexer.Reload()
        context = backend_context.Context(base_plugin.TBContext(data_provider=data_provider.MultiplexerDataProvider(multiplexer, folder)))
        request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=10, allowed_statuses=[api_pb2.STATUS_SUCCESS])
        request_context = RequestContext()
        metadata = context.hparams_metadata(request_context, "")
        experiment = context.experiment_from_metadata(request_context, "", True, metadata, [])
        for metric in experiment.metric_infos:
            request.col_params.add().metric.CopyFrom(metric.name)
        groups = list_session_groups.Handler(request_context, context, "", request).run().session_groups
        if len(groups) != 1 or len(groups[0].hparams) != len(call["values"]):
            fail(f"the HParams tab shows {len(groups)} sessions")
        if [value.name.tag for value in groups[0].metric_values] != call["metrics"]:
            fail("the HParams tab shows other metrics")


def main():
    path, calls = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
    events = [Event.FromString(record) for record in RawEventFileLoader(path).Load()]
    if events[0].file_version != "brain.Event:2":
        fail("the first event is not the version")
    with tempfile.TemporaryDirectory() as folder:
        bins = SummaryWriter(folder).default_bins
    rest = iter(events[1:])
    for call in calls:
        taken = [next(rest) for _ in range(3 if call["kind"] == "hparams" else 1)]
        values = [value for event in taken for value in event.summary.value]
        if any(event.step != call["step"] for event in taken):
            fail(f"{call}: step {taken[0].step}")
        if call["kind"] == "hparams":
            check_hparams(values, call)
            check_tab(path, call)
            continue
        value, = values
        if value.tag != (call["tag"] + "/text_summary" if call["kind"] == "text" else call["tag"]):
            fail(f"{call}: tag {value.tag}")
        if call["kind"] == "scalar":
            expected = summary.scalar(call["tag"], float(call["value"])).value[0]
            if not close(value.simple_value, expected.simple_value):
                fail(f"{call}: value {value.simple_value}")
        elif call["kind"] == "histogram":
            check_histogram(value.histo, call, bins)
        elif call["kind"] == "image":
            check_image(value.image, call)
        elif call["kind"] == "text" and value != summary.text(call["tag"], call["text"]).value[0]:
            fail(f"{call}: text differs")
    if next(rest, None) is not None:
        fail("there are more events than calls")
    print(f"{len(calls)} calls, {len(events)} events: equal")


if __name__ == "__main__":
    main()
