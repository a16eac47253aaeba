#include "levin/config/config.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"

namespace levin::config {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

/// Readable from text, as the trainer's own values are.
struct Share {
  Share() = default;
  explicit Share(std::string_view text) {
    LEVIN_CHECK(text.ends_with('%'), "[share] \"", text, "\" has no %");
    value = std::stoi(std::string(text));
  }
  std::string to_string() const { return std::to_string(value) + "%"; }
  int value = 10;
};

struct Inner {
  double momentum = 0.9;
  void fields(auto f) { f("momentum", momentum, "how much is kept"); }
};

struct Options {
  double lr = 1e-3;
  int64_t width = 64;
  uint8_t small = 3;
  bool bias = true;
  std::string name = {};
  std::string act = "relu";
  fs::path folder = {};
  std::optional<int64_t> depth = {};
  std::optional<std::string> note = {};
  std::vector<int64_t> sizes = {1, 2};
  std::vector<std::string> labels = {};
  std::array<double, 2> betas = {0.9, 0.999};
  Share share = {};
  Inner inner = {};

  void fields(auto f) {
    f("lr", lr, "learning rate");
    f("width", width, "units of the hidden layer");
    f("small", small, "a small number");
    f("bias", bias, "whether there is a bias");
    f("name", name, "what it is called");
    f("act", act, "activation", {"relu", "gelu"});
    f("folder", folder, "where it lies");
    f("depth", depth, "layers");
    f("note", note, "a remark");
    f("sizes", sizes, "sizes of something, to fill the line so that it has to be broken at the end");
    f("labels", labels, "words");
    f("betas", betas, "two numbers");
    f("share", share, "a fraction");
    f("inner", inner, "deeper");
  }
};

struct SgdLike {
  double lr = 0.1;
  bool nesterov = false;
};
void fields(SgdLike& o, auto f) {
  f("lr", o.lr, "learning rate");
  f("nesterov", o.nesterov, "look ahead");
}
struct AdamLike {
  double lr = 0.001;
  std::array<double, 2> betas = {0.9, 0.999};
};
void fields(AdamLike& o, auto f) {
  f("lr", o.lr, "learning rate");
  f("betas", o.betas, "decays");
}

const std::vector<Class>& classes() {
  static const std::vector<Class> table{{"Sgd", "plain", [] { return AnyOptions(SgdLike{}); }},
                                        {"Adam", "with moments", [] { return AnyOptions(AdamLike{}); }}};
  return table;
}

/// Everything a command has, bound to variables that the tests look at.
struct App {
  Options options;
  int64_t seed = 0;
  std::vector<Chosen> optimizer, callbacks;
  Config config{"app fit", make(), {{"model", "The model:"}, {"optimizer", "The optimizer:"}}};

  std::vector<Field> make() {
    std::vector<Field> all;
    all.push_back(make_field("seed", seed, "of all generators"));
    all.back().aliases = {"seed_everything"};
    add_fields(all, options, "model.");
    all.push_back(make_class_field("model.callbacks", "what else happens", classes(), callbacks, true));
    all.push_back(make_class_field("optimizer", "who changes the weights", classes(), optimizer));
    return all;
  }
  void yaml(const std::string& text, const std::string& name = "run.yaml") {
    const testing::TemporaryFolder folder;
    write_file(folder / name, text);
    config.add_file(folder / name);
  }
  Asked flags(const std::vector<std::string>& words) {
    auto asked = config.add_arguments(words);
    config.finish();
    return asked;
  }
};

TEST(Yaml, KeepsOrderAndLines) {
  const auto tree = parse_yaml("b: 1\na:\n  - x\n  - 'y'\nc: {d: null, e: ~}\n", "t.yaml");
  ASSERT_EQ(tree.entries.size(), 3u);
  EXPECT_EQ(tree.entries[0].first, "b");
  EXPECT_EQ(tree.find("a")->items[1].origin.where, "t.yaml:4");
  EXPECT_TRUE(tree.find("a")->items[1].is_quoted);
  EXPECT_TRUE(tree.find("c")->find("d")->is_null());
  EXPECT_TRUE(tree.find("c")->find("e")->is_null());
  EXPECT_TRUE(parse_yaml("", "t").is_null());
}

TEST(Yaml, AliasesAndMergeKeys) {
  const auto tree = parse_yaml("base: &b {lr: 1, w: 2}\nuse:\n  <<: *b\n  lr: 3\n", "t");
  EXPECT_EQ(tree.find("use")->find("lr")->text, "3");
  EXPECT_EQ(tree.find("use")->find("w")->text, "2");
}

TEST(Yaml, RefusesWhatNoConfigIs) {
  const auto refused = [](const std::string& text) { return error_of([&] { parse_yaml(text, "t.yaml", "app"); }); };
  EXPECT_EQ(refused("a: 1\nb: 2\na: 3\n"), "[app] t.yaml:3: the key \"a\" stands twice");
  EXPECT_THAT(refused("max-e: 1\nmax_e: 2\n"), HasSubstr("t.yaml:2: the key \"max_e\" stands twice"));
  EXPECT_THAT(refused("a: !!python/object:os.system x"), HasSubstr("is not allowed in a config"));
  EXPECT_THAT(refused("? [a]\n: 1\n"), HasSubstr("a key must be a word"));
  EXPECT_THAT(refused("a: 1\n---\nb: 2\n"), HasSubstr("more than one document"));
  EXPECT_THAT(refused("a: [1, 2\nb: 3\n"), HasSubstr("[app] t.yaml:"));
  EXPECT_THAT(refused("a: &a [*a]"), HasSubstr("t.yaml:1"));
  EXPECT_THAT(refused("a: *nobody"), HasSubstr("t.yaml:1"));
  EXPECT_THAT(refused(std::string(40, '[') + std::string(40, ']')), HasSubstr("deeper than 32 levels"));
  EXPECT_THAT(refused(std::string(100'000, '[')), HasSubstr("t.yaml"));
  EXPECT_THAT(refused(std::string(2 << 20, 'a')), HasSubstr("bytes; a config has at most"));
  // Every line names the one before ten times.
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    laughs += fmt::format("a{0}: &a{0} [", i);
    for (int j = 0; j < 10; ++j) laughs += fmt::format("{}*a{}", j ? ", " : "", i - 1);
    laughs += "]\n";
  }
  EXPECT_THAT(refused(laughs), HasSubstr("more than 20000 values"));
  EXPECT_THAT(error_of([] { read_yaml("/nowhere/run.yaml", "app"); }),
              AllOf(HasSubstr("[app] "), HasSubstr("/nowhere/run.yaml")));
}

TEST(Yaml, TextsComeBackAsTheyWere) {
  for (const std::string text :
       {"plain",  "a b",   "a: b", "#no",     "x #y", "null", "true", "3",  "-1",  "",    " lead",
        "trail ", "\"q\"", "a\\b", "a\nb\tc", "[x]",  "{",    "*a",   "&a", "- a", "-",   "@x",
        "%d",     "it's",  "key:", "ü",       "a,b",  "~",    "None", ".5", "1e3", "\x01"}) {
    const auto tree = parse_yaml("v: " + yaml_scalar(text, true) + "\nl: [" + yaml_scalar(text, true) + "]\n", "t");
    EXPECT_EQ(tree.find("v")->text, text);
    ASSERT_EQ(tree.find("l")->items.size(), 1u) << text;
    EXPECT_EQ(tree.find("l")->items[0].text, text);
    EXPECT_TRUE(tree.find("v")->is_text()) << text;
  }
}

TEST(Config, LaterLayersWin) {
  App s;
  s.config.add_recipe("model: {lr: 1, width: 1, act: gelu, depth: 1}", "recipe");
  s.yaml("model:\n  width: 2\n  act: relu\n", "a.yaml");
  s.yaml("model: {act: gelu, name: b}\n", "b.yaml");
  const std::vector<std::string> environment{"APP_MODEL_NAME=env", "APP_MODEL_DEPTH=7", "HOME=/",
                                             "APP_MODEL_INNER_MOMENTUM=0.5"};
  s.config.add_environment("APP_MODEL_", "model", environment);
  s.flags({"--model.depth", "9"});
  EXPECT_EQ(s.options.lr, 1);
  EXPECT_EQ(s.options.width, 2);
  EXPECT_EQ(s.options.act, "gelu");
  EXPECT_EQ(s.options.name, "env");
  EXPECT_EQ(s.options.depth, 9);
  EXPECT_EQ(s.options.inner.momentum, 0.5);
  EXPECT_EQ(s.config.origin("model.lr").where, "recipe:1");
  EXPECT_THAT(s.config.origin("model.width").where, ::testing::EndsWith("a.yaml:2"));
  EXPECT_EQ(s.config.origin("model.depth").where, "--model.depth");
  EXPECT_EQ(s.config.origin("model.bias").layer, Layer::kDefault);
}

TEST(Config, FilesAreReadBeforeFlagsWhereverTheyStand) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "order.yaml";
  write_file(path, "model: {width: 2, lr: 2}\n");
  App s;
  s.flags({"--model.width", "3", "--config", path.string()});
  EXPECT_EQ(s.options.width, 3);
  EXPECT_EQ(s.options.lr, 2);
}

TEST(Config, FlagsInAllSpellings) {
  App s;
  const auto asked = s.flags({"--model.lr=0.5",
                              "--model.width",
                              "1e3",
                              "--model.bias=no",
                              "--model.sizes",
                              "4,5,6",
                              "--model.labels",
                              "[a, \"b, c\"]",
                              "--model.betas=0.5,0.6",
                              "--seed-everything",
                              "3",
                              "--model.share",
                              "50%",
                              "--model.note",
                              "null",
                              "--model.name",
                              "[x]",
                              "--model.inner.momentum",
                              "-1",
                              "--print-config"});
  EXPECT_TRUE(asked.print_config);
  EXPECT_EQ(s.options.lr, 0.5);
  EXPECT_EQ(s.options.width, 1000);
  EXPECT_FALSE(s.options.bias);
  EXPECT_THAT(s.options.sizes, ElementsAre(4, 5, 6));
  EXPECT_THAT(s.options.labels, ElementsAre("a", "b, c"));
  EXPECT_THAT(s.options.betas, ElementsAre(0.5, 0.6));
  EXPECT_EQ(s.seed, 3);
  EXPECT_EQ(s.options.share.value, 50);
  EXPECT_EQ(s.options.name, "[x]");
  EXPECT_EQ(s.options.inner.momentum, -1);
  App on;
  on.options.bias = false;
  on.flags({"--model.bias", "--model.width", "5"});
  EXPECT_TRUE(on.options.bias);
}

TEST(Config, OneLineForEachMistakeOfFlags) {
  const auto refused = [](const std::vector<std::string>& words) {
    return error_of([&] {
      App s;
      s.flags(words);
    });
  };
  EXPECT_EQ(refused({"--model.width", "ten"}), "[app fit] --model.width \"ten\" is not a whole number");
  EXPECT_EQ(refused({"--model.width=1.5"}), "[app fit] --model.width \"1.5\" is not a whole number");
  EXPECT_EQ(refused({"--model.small", "256"}), "[app fit] --model.small \"256\" is out of range (0 to 255)");
  EXPECT_EQ(refused({"--model.bias", "maybe"}), "[app fit] --model.bias \"maybe\" is not true or false");
  EXPECT_EQ(refused({"--model.lr", "x"}), "[app fit] --model.lr \"x\" is not a number");
  EXPECT_EQ(refused({"--model.betas", "1"}), "[app fit] --model.betas \"1\" has 1 values where 2 are needed");
  EXPECT_EQ(refused({"--model.share", "5"}), "[app fit] --model.share \"5\" is refused: \"5\" has no %");
  EXPECT_EQ(refused({"--model.act", "relo"}),
            "[app fit] --model.act \"relo\" is not known; did you mean \"relu\"? (known: relu, gelu)");
  EXPECT_EQ(refused({"--model.widht", "3"}),
            "[app fit] flag \"--model.widht\" is not known; did you mean \"--model.width\"? (--help lists all)");
  EXPECT_EQ(refused({"--width", "3"}),
            "[app fit] flag \"--width\" is not known; did you mean \"--model.width\"? (--help lists all)");
  EXPECT_EQ(refused({"--model.width"}), "[app fit] --model.width needs a value");
  EXPECT_EQ(refused({"stray"}), "[app fit] \"stray\" is not expected here; flags are --name value (--help lists them)");
  EXPECT_EQ(refused({"--config"}), "[app fit] --config needs the path of a YAML file");
  EXPECT_EQ(refused({"--optimizer", "Sgdd"}),
            "[app fit] --optimizer \"Sgdd\" is not known; did you mean \"Sgd\"? (known: Sgd, Adam)");
  EXPECT_EQ(refused({"--optimizer", "Sgd", "--optimizer.l", "1"}),
            "[app fit] --optimizer.l: option of Sgd \"l\" is not known; did you mean \"lr\"? (known: lr, nesterov)");
  EXPECT_EQ(refused({"--optimizer.lr", "1"}),
            "[app fit] --optimizer.lr: optimizer has options but no class; name one of: Sgd, Adam");
  EXPECT_THAT(refused({"--model.callbacks.lr", "1"}), HasSubstr("no --model.callbacks NAME stands before it"));
}

TEST(Config, OneLineForEachMistakeOfFiles) {
  const auto refused = [](const std::string& text) {
    const auto line = error_of([&] {
      App s;
      s.yaml(text);
      s.config.finish();
    });
    const auto at = line.find("run.yaml");
    return at == std::string::npos ? line : line.substr(at);
  };
  EXPECT_EQ(refused("model:\n  width: ten\n"), "run.yaml:2: model.width \"ten\" is not a whole number");
  EXPECT_EQ(refused("model:\n  bias: [1]\n"), "run.yaml:2: model.bias [1] is not true or false");
  EXPECT_EQ(refused("modl:\n  width: 1\n"),
            "run.yaml:2: key \"modl\" is not known; did you mean \"model\"? (known: seed, model, optimizer)");
  EXPECT_THAT(refused("model:\n  lr: 1\n  widht: 1\n"),
              HasSubstr("run.yaml:3: key of \"model\" \"widht\" is not known; did you mean \"width\"?"));
  EXPECT_THAT(refused("model: 3\n"), HasSubstr("run.yaml:1: \"model\" needs names and values below it, not 3"));
  EXPECT_THAT(refused("- 3\n"), HasSubstr("a config is a map of names"));
  EXPECT_EQ(refused("optimizer:\n  class: Adam\n  betas: [1]\n"),
            "run.yaml:3: optimizer.betas [1] has 1 values where 2 are needed");
  EXPECT_THAT(error_of([] {
                App s;
                s.config.add_environment("APP_MODEL_", "model", std::vector<std::string>{"APP_MODEL_WIDHT=1"});
              }),
              HasSubstr("variable \"APP_MODEL_WIDHT\" is not known; did you mean \"APP_MODEL_WIDTH\"?"));
  EXPECT_EQ(error_of([] {
              App s;
              s.config.add_environment("APP_MODEL_", "model", std::vector<std::string>{"APP_MODEL_WIDTH=x"});
            }),
            "[app fit] APP_MODEL_WIDTH: model.width \"x\" is not a whole number");
}

TEST(Config, ClassesAreFoundInLettersOfEitherCase) {
  for (const std::string name : {"Adam", "adam", "ADAM", "torch.optim.adam"}) {
    App s;
    s.yaml("optimizer: {class: Adam, lr: 5}");
    s.flags({"--optimizer", name});
    ASSERT_EQ(s.optimizer.size(), 1u) << name;
    EXPECT_EQ(s.optimizer[0].name, "Adam") << name;
    EXPECT_EQ(s.optimizer[0].options.get<AdamLike>().lr, 5) << "the same class: its options stay, " << name;
    EXPECT_THAT(s.config.to_yaml("x"), HasSubstr("class: Adam"));
  }
  App many;
  many.flags({"--model.callbacks", "sgd,ADAM"});
  ASSERT_EQ(many.callbacks.size(), 2u);
  EXPECT_EQ(many.callbacks[0].name, "Sgd");
  EXPECT_EQ(many.callbacks[1].name, "Adam");
  EXPECT_EQ(App().config.help("adam"), App().config.help("Adam"));
}

TEST(Config, AnotherClassForgetsTheOptionsOfTheFormer) {
  App same;
  same.yaml("optimizer: {class: Adam, lr: 5, betas: [0.1, 0.2]}");
  same.flags({"--optimizer.lr", "6"});
  ASSERT_EQ(same.optimizer.size(), 1u);
  EXPECT_EQ(same.optimizer[0].name, "Adam");
  EXPECT_EQ(same.optimizer[0].options.get<AdamLike>().lr, 6);
  EXPECT_EQ(same.optimizer[0].options.get<AdamLike>().betas[1], 0.2);

  App other;
  other.yaml("optimizer: {class: Adam, lr: 5, betas: [0.1, 0.2]}");
  other.flags({"--optimizer.nesterov", "--optimizer", "Sgd"});
  ASSERT_EQ(other.optimizer.size(), 1u);
  EXPECT_EQ(other.optimizer[0].options.get<SgdLike>().lr, 0.1);
  EXPECT_TRUE(other.optimizer[0].options.get<SgdLike>().nesterov);

  App none;
  none.yaml("optimizer: Adam");
  none.flags({"--optimizer", "null"});
  EXPECT_TRUE(none.optimizer.empty());
}

TEST(Config, TakesTheFormWithClassPathAndInitArgs) {
  App s;
  s.yaml("optimizer:\n  class_path: torch.optim.Adam\n  init_args:\n    lr: 0.25\n");
  s.config.finish();
  ASSERT_EQ(s.optimizer.size(), 1u);
  EXPECT_EQ(s.optimizer[0].options.get<AdamLike>().lr, 0.25);
}

TEST(Config, ListsOfClasses) {
  App file;
  file.yaml("model:\n  callbacks:\n    - class: Sgd\n      lr: 3\n    - Adam\n");
  file.flags({"--model.callbacks+=Sgd", "--model.callbacks.lr", "4"});
  ASSERT_EQ(file.callbacks.size(), 3u);
  EXPECT_EQ(file.callbacks[0].options.get<SgdLike>().lr, 3);
  EXPECT_EQ(file.callbacks[1].name, "Adam");
  EXPECT_EQ(file.callbacks[2].options.get<SgdLike>().lr, 4);

  App flags;
  flags.yaml("model: {callbacks: [Sgd, Sgd]}");
  flags.flags({"--model.callbacks", "Adam", "--model.callbacks.lr", "1", "--model.callbacks", "Sgd"});
  ASSERT_EQ(flags.callbacks.size(), 2u);
  EXPECT_EQ(flags.callbacks[0].options.get<AdamLike>().lr, 1);
  EXPECT_EQ(flags.callbacks[1].name, "Sgd");
}

TEST(Config, PrintedAndReadBackItIsTheSame) {
  App s;
  s.options.name = "null";
  s.options.note = "a: b # c";
  s.options.folder = "runs/my run";
  s.options.labels = {"x,y", "true"};
  s.flags({"--model.lr", "1e-5", "--model.depth", "3", "--optimizer", "Adam", "--optimizer.betas", "0.25,0.5",
           "--model.callbacks", "Sgd", "--model.callbacks.lr", "7", "--model.callbacks", "Adam", "--model.share",
           "20%"});
  const auto text = s.config.to_yaml("app fit");
  EXPECT_THAT(text,
              AllOf(HasSubstr("# app fit\n"), HasSubstr("\nmodel:\n  lr: 1.0e-05  # learning rate [--model.lr]\n"),
                    HasSubstr("\n  name: \"null\"  # what it is called\n"),
                    HasSubstr("\n    - class: Sgd  # [--model.callbacks]\n      lr: 7"),
                    HasSubstr("\n  inner:\n    momentum: 0.9")));
  App back;
  back.yaml(text);
  back.config.finish();
  EXPECT_EQ(back.options.lr, 1e-5);
  EXPECT_EQ(back.options.name, "null");
  EXPECT_EQ(back.options.note, "a: b # c");
  EXPECT_EQ(back.options.folder, "runs/my run");
  EXPECT_THAT(back.options.labels, ElementsAre("x,y", "true"));
  EXPECT_EQ(back.options.share.value, 20);
  ASSERT_EQ(back.callbacks.size(), 2u);
  const auto without_origins = [](std::string yaml) {
    std::string out;
    for (size_t i = 0; i < yaml.size(); ++i)
      if (yaml.compare(i, 3, "  #") == 0)
        while (i < yaml.size() && yaml[i] != '\n') ++i, out += i < yaml.size() && yaml[i] == '\n' ? "\n" : "";
      else
        out += yaml[i];
    return out;
  };
  EXPECT_EQ(without_origins(back.config.to_yaml("app fit")), without_origins(text));
}

TEST(Config, NumbersKeepEveryBit) {
  for (const double value :
       {1e-8, 0.1, 1.0 / 3, 65536.0, 1e300, 5e-324, -0.25, std::numeric_limits<double>::infinity()}) {
    const auto node = Codec<double>::write(value);
    EXPECT_EQ(Codec<double>::read(parse_yaml("[" + node.to_string() + "]", "t").items[0]), value) << node.to_string();
  }
  EXPECT_TRUE(std::isnan(Codec<double>::read(Codec<double>::write(std::nan("")))));
}

TEST(Config, PairsInBothForms) {
  using Pairs = std::map<int64_t, double>;
  const Pairs pairs{{0, 8}, {4, 0.5}};
  EXPECT_EQ(Codec<Pairs>::read(Node::of_text("0:8, 4:0.5")), pairs);
  EXPECT_EQ(Codec<Pairs>::read(*parse_yaml("v: {0: 8, 4: 0.5}", "t").find("v")), pairs);
  EXPECT_EQ(Codec<Pairs>::write(pairs).to_string(), "{0: 8, 4: 0.5}");
  EXPECT_THROW(Codec<Pairs>::read(Node::of_text("0,8")), BadValue);
}

TEST(Config, HelpIsForEightyColumns) {
  App s;
  s.flags({"--optimizer", "Adam"});
  const auto help = s.config.help();
  for (size_t begin = 0, end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(end - begin, 80u) << help.substr(begin, end - begin);
  EXPECT_THAT(help, AllOf(HasSubstr("Flags:\n  --seed N"), HasSubstr("\nThe model:\n  --model.lr X"),
                          HasSubstr("learning rate [0.001]"), HasSubstr("activation (relu, gelu) [relu]"),
                          HasSubstr("--optimizer.betas X,..."), Not(HasSubstr("--optimizer.nesterov"))));
  EXPECT_THAT(s.config.help("model"), AllOf(HasSubstr("--model.lr"), Not(HasSubstr("--seed"))));
  EXPECT_THAT(s.config.help("Sgd"), AllOf(HasSubstr("Sgd: plain"), HasSubstr("--optimizer.nesterov")));
  EXPECT_THAT(s.config.help("--model.lr"), AllOf(HasSubstr("learning rate"), Not(HasSubstr("--model.width"))));
  EXPECT_THAT(error_of([&] { (void)s.config.help("modl"); }), HasSubstr("did you mean \"model\"?"));
}

TEST(Config, ValuesOfASection) {
  App s;
  s.flags({"--optimizer", "Sgd"});
  EXPECT_EQ(s.config.values("optimizer").to_string(), "{class: Sgd, lr: 0.1, nesterov: false}");
  EXPECT_EQ(s.config.values("model").find("width")->text, "64");
}

}  // namespace
}  // namespace levin::config
