#include "levin/generate/engine.h"

#include <atomic>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/random.h"
#include "levin/generate/engine/block_pool.h"
#include "levin/testing/error_of.h"
#include "tests/generate/longer_model.h"

namespace levin::generate_tests {
namespace {

using detail::BlockPool;
using testing::error_of;
using ::testing::HasSubstr;

Ids random_ids(Random& random, int64_t length, int64_t words = 50) {
  Ids ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(random.integer(0, words - 1));
  return ids;
}

GenerateOptions greedy(int64_t tokens) {
  return {.max_new_tokens = tokens, .temperature = 0};
}

/// Options of every kind, by a number.
GenerateOptions some_options(Random& random, int64_t most) {
  GenerateOptions options{.max_new_tokens = random.integer(1, most), .seed = random.bits64()};
  if (random.chance(0.4)) options.temperature = 0;
  if (random.chance(0.4)) options.top_k = random.integer(2, 20);
  if (random.chance(0.4)) options.top_p = 0.9;
  if (random.chance(0.2)) options.min_p = 0.02;
  if (random.chance(0.2)) options.repetition_penalty = 1.2;
  if (random.chance(0.2)) options.no_repeat_ngram_size = 3;
  if (random.chance(0.2)) options.top_logprobs = random.integer(1, 4);
  if (random.chance(0.3)) options.eos_token_ids = {random.integer(0, 49), random.integer(0, 49)};
  if (random.chance(0.2)) options.num_return_sequences = 2;
  return options;
}

/// What a request has told.
struct Told {
  std::map<size_t, Generated> done;
  std::map<size_t, Ids> tokens;
  std::string error;
};

EngineRequest request_for(Told& told, Ids prompt, const GenerateOptions& options) {
  return {.prompt = std::move(prompt),
          .options = options,
          .on_token =
              [&told](const GeneratedToken& token) {
                told.tokens[token.row].push_back(token.id);
                return true;
              },
          .on_done =
              [&told](const Generated& row) {
                EXPECT_FALSE(told.done.contains(row.row));
                told.done[row.row] = row;
              },
          .on_error = [&told](const std::string& line) { told.error = line; }};
}

void expect_same(const Told& told, const std::vector<Generated>& alone, const std::string& what) {
  EXPECT_EQ(told.error, "") << what;
  ASSERT_EQ(told.done.size(), alone.size()) << what;
  for (const auto& [row, found] : told.done) {
    const auto& expected = alone[row];
    ASSERT_EQ(found.ids, expected.ids) << what;
    EXPECT_EQ(told.tokens.at(row), expected.ids) << what;
    EXPECT_EQ(found.finish_reason, expected.finish_reason) << what;
    for (size_t i = 0; i < expected.logprobs.size(); ++i)
      ASSERT_NEAR(found.logprobs[i], expected.logprobs[i], 1e-4) << what << " " << i;
    ASSERT_EQ(found.top_logprobs.size(), expected.top_logprobs.size());
  }
}

TEST(BlockPool, SharesKnownBlocksAndForgetsTheOldest) {
  BlockPool pool(1, 3);
  const auto a = *pool.take(), b = *pool.take();
  const Ids first{1, 2}, second{3, 4};
  const auto node = pool.publish(0, first, a);
  const auto behind = pool.publish(node, second, b);
  EXPECT_EQ(pool.find(0, first)->block, a);
  EXPECT_EQ(pool.find(node, second)->node, behind);
  EXPECT_FALSE(pool.find(0, second));
  EXPECT_EQ(pool.publish(0, first, *pool.take()), node);  // known already: the other block stays unknown
  EXPECT_FALSE(pool.take());
  pool.hold(a);
  pool.release(b), pool.release(a);
  EXPECT_EQ(pool.available(), 1);  // one holder of a is left
  pool.release(a);
  EXPECT_EQ(pool.cached(), 2);
  EXPECT_EQ(*pool.take(), b);  // released before a
  EXPECT_FALSE(pool.find(node, second));
  EXPECT_EQ(pool.find(0, first)->block, a);
  EXPECT_EQ(*pool.take(), a);
  // The same tokens behind a new beginning are not those behind the forgotten one.
  EXPECT_NE(pool.publish(0, first, a), node);
  EXPECT_NE(error_of([&] { pool.release(a), pool.release(a); }).find("nobody holds it"), std::string::npos);
}

TEST(Engine, GreedyTokensAreTransformersTokensForEveryArchitecture) {
  const auto fixtures = fixture();
  ASSERT_GE(fixtures.size(), 22u);
  for (const auto& [name, expected] : fixtures.items()) {
    auto options = greedy(40);
    options.paged = true;
    options.prefill_chunk = 4;
    const auto rows = generate(longer_model(name), kPrompts, options);
    for (size_t i = 0; i < rows.size(); ++i) {
      auto ids = expected["greedy"][i].get<Ids>();
      ids.resize(40);
      EXPECT_EQ(rows[i].ids, ids) << name;
      EXPECT_EQ(rows[i].row, i);
      EXPECT_EQ(rows[i].prompt, i);
    }
  }
}

TEST(Engine, SixtyFourRequestsAtOnceGiveWhatTheyGiveAlone) {
  auto model = longer_model("mistral");
  Random random(1, 0, 0);
  Engine engine(model, nullptr, {.max_rows = 64, .cache_tokens = 64 * 64, .prefill_chunk = 64});
  std::vector<Told> told(64);
  std::vector<Ids> prompts;
  std::vector<GenerateOptions> options;
  for (size_t i = 0; i < told.size(); ++i) {
    prompts.push_back(random_ids(random, random.integer(1, 40)));
    options.push_back(some_options(random, 16));
    engine.submit(request_for(told[i], prompts[i], options[i]));
  }
  engine.run_until_idle();
  const auto stats = engine.stats();
  int64_t tokens = 0, sequences = 0;
  for (size_t i = 0; i < told.size(); ++i) {
    expect_same(told[i], generate(model, {prompts[i]}, options[i]), "request " + std::to_string(i));
    for (const auto& [row, ids] : told[i].tokens) tokens += static_cast<int64_t>(ids.size()), ++sequences;
  }
  EXPECT_EQ(stats.generated_tokens, tokens);
  EXPECT_EQ(stats.finished, sequences);
  EXPECT_EQ(stats.running + stats.waiting + stats.blocks_used, 0);
  EXPECT_LT(stats.steps, 64);  // together
  EXPECT_GT(stats.tokens_per_second, 0);
}

TEST(Engine, APromptThatBeginsAsAnotherTakesItsBlocks) {
  auto model = longer_model("llama");
  Random random(2, 0, 0);
  const auto common = random_ids(random, 32);
  std::vector<Ids> prompts;
  for (int64_t i = 0; i < 4; ++i) {
    prompts.push_back(common);
    const auto own = random_ids(random, 5);
    prompts.back().insert(prompts.back().end(), own.begin(), own.end());
  }
  auto options = greedy(12);
  options.top_logprobs = 5;
  const auto run = [&](bool reuse, EngineStats& stats) {
    Engine engine(model, nullptr, {.cache_tokens = 1024, .block_tokens = 8, .prefix_reuse = reuse});
    std::vector<Told> told(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) engine.submit(request_for(told[i], prompts[i], options));
    engine.run_until_idle();
    // Again, with what is left behind, and with the generated tokens as a prompt.
    auto longer = prompts[0];
    for (const auto id : told[0].done[0].ids) longer.push_back(id);
    Told last, again;
    engine.submit(request_for(last, longer, options));
    engine.submit(request_for(again, prompts[0], options));
    engine.run_until_idle();
    stats = engine.stats();
    EXPECT_EQ(again.done[0].ids, told[0].done[0].ids);
    told.push_back(last);
    return told;
  };
  EngineStats with, without;
  const auto shared = run(true, with), own = run(false, without);
  EXPECT_EQ(without.prefix_hit_tokens, 0);
  // Three of the first four, which arrive together, 48 of 49 tokens of the longer one (the last of them was never
  // computed), and 32 of the last.
  EXPECT_EQ(with.prefix_hit_tokens, 3 * 32 + 48 + 32);
  EXPECT_EQ(with.blocks_used, 0);
  EXPECT_GT(with.blocks_cached, 0);
  for (size_t i = 0; i < shared.size(); ++i) {
    const auto &a = shared[i].done.at(0), &b = own[i].done.at(0);
    EXPECT_EQ(a.ids, b.ids);
    for (size_t k = 0; k < a.ids.size(); ++k)
      for (size_t j = 0; j < 5; ++j) EXPECT_NEAR(a.top_logprobs[k][j].second, b.top_logprobs[k][j].second, 1e-5);
  }
}

TEST(Engine, KeysThatDependOnTheLengthOfThePromptAreNotShared) {
  auto model = longer_model("llama_dynamic");
  const auto trained = models::trained_positions(model->options);
  Random random(8, 0, 0);
  const auto ids = random_ids(random, trained + 20);
  Engine engine(model, nullptr, {.cache_tokens = 512, .block_tokens = 4});
  // Twice within the positions of training, and thrice beyond them.
  for (const auto length : {trained - 2, trained - 2, trained + 8, trained + 20, trained + 8}) {
    Told told;
    const Ids prompt(ids.begin(), ids.begin() + length);
    engine.submit(request_for(told, prompt, greedy(12)));
    engine.run_until_idle();
    expect_same(told, generate(model, {prompt}, greedy(12)), std::to_string(length));
  }
  EXPECT_EQ(engine.stats().prefix_hit_tokens, (trained - 3) / 4 * 4);
}

TEST(Engine, AHalfComputedBlockIsNobodyElses) {
  auto model = longer_model("llama");
  Random random(6, 0, 0);
  const auto prompt = random_ids(random, 44);
  const auto alone = generate(model, {prompt}, greedy(6));
  for (const bool leaves : {true, false}) {
    Engine engine(model, nullptr, {.cache_tokens = 256, .block_tokens = 16, .prefill_chunk = 4});
    Told first, second;
    const auto id = engine.submit(request_for(first, prompt, greedy(6)));
    engine.step();  // 20 tokens: one block, and a part of the next
    ASSERT_TRUE(first.tokens[0].empty());
    if (leaves) engine.cancel(id);
    engine.submit(request_for(second, prompt, greedy(6)));
    engine.run_until_idle();
    EXPECT_GE(engine.stats().prefix_hit_tokens, 16);
    expect_same(second, alone, "second");
    if (!leaves) expect_same(first, alone, "first");
  }
}

TEST(Engine, RowsGiveUpTheirBlocksForOlderOnesAndEndTheSame) {
  // Dynamic scaling: what was generated before a preemption has other angles than the prompt.
  for (const std::string name : {"llama_dynamic", "gemma2"}) {
    auto model = longer_model(name);
    Random random(3, 0, 0);
    std::vector<Ids> prompts;
    for (int64_t i = 0; i < 5; ++i) prompts.push_back(random_ids(random, 3 + 4 * i));
    const auto alone = generate(model, prompts, greedy(30));
    for (const bool reuse : {false, true}) {
      Engine engine(model, nullptr,
                    {.max_rows = 8, .cache_tokens = 60, .block_tokens = 4, .prefill_chunk = 8, .prefix_reuse = reuse});
      std::vector<Told> told(prompts.size());
      std::vector<size_t> order;
      for (size_t i = 0; i < told.size(); ++i) {
        auto request = request_for(told[i], prompts[i], greedy(30));
        request.on_done = [&, i, done = request.on_done](const Generated& row) { order.push_back(i), done(row); };
        engine.submit(std::move(request));
      }
      engine.run_until_idle();
      EXPECT_GT(engine.stats().preempted, 0) << name;
      EXPECT_EQ(engine.stats().blocks_used, 0) << name;
      EXPECT_EQ(order.front(), 0u);
      for (size_t i = 0; i < told.size(); ++i) expect_same(told[i], {alone[i]}, name + " " + std::to_string(i));
    }
  }
}

TEST(Engine, ALongPromptStallsNobody) {
  auto model = longer_model("llama");
  Random random(4, 0, 0);
  Engine engine(model, nullptr, {.cache_tokens = 512, .prefill_chunk = 4});
  Told decoding, longer, shorter;
  engine.submit(request_for(decoding, {5, 6}, greedy(60)));
  engine.step();
  engine.submit(request_for(longer, random_ids(random, 70), greedy(4)));
  engine.submit(request_for(shorter, random_ids(random, 4), greedy(4)));
  size_t steps = 0;
  for (; longer.tokens[0].empty(); ++steps) {
    const auto before = decoding.tokens[0].size();
    engine.step();
    EXPECT_EQ(decoding.tokens[0].size(), before + 1);
    EXPECT_FALSE(shorter.tokens[0].empty());  // overtook
  }
  EXPECT_GT(steps, 3u);
  EXPECT_LT(steps, 20u);
  engine.run_until_idle();
  EXPECT_EQ(longer.done[0].ids.size(), 4u);
}

TEST(Engine, ACancelledRequestFreesItsPlace) {
  auto model = longer_model("llama");
  Engine engine(model, nullptr, {.max_rows = 2, .cache_tokens = 256, .prefix_reuse = false});
  std::vector<Told> told(4);
  std::vector<uint64_t> ids;
  auto two = greedy(50);
  two.num_return_sequences = 2;
  ids.push_back(engine.submit(request_for(told[0], {1, 2, 3}, two)));
  ids.push_back(engine.submit(request_for(told[1], {4}, greedy(5))));
  ids.push_back(engine.submit(request_for(told[2], {4}, greedy(5))));
  ids.push_back(engine.submit(request_for(told[3], {5}, greedy(5))));
  for (int i = 0; i < 4; ++i) engine.step();
  EXPECT_EQ(engine.stats().running, 2);
  EXPECT_EQ(engine.stats().waiting, 3);
  engine.cancel(ids[0]);  // both of its rows
  engine.cancel(ids[2]);  // waits
  engine.cancel(77);      // nobody
  engine.step();
  EXPECT_EQ(told[0].done.size(), 2u);
  EXPECT_EQ(told[0].done[1].finish_reason, "cancelled");
  EXPECT_EQ(told[0].done[0].ids.size(), told[0].tokens[0].size());
  EXPECT_TRUE(told[2].done[0].ids.empty());
  EXPECT_FALSE(told[1].tokens[0].empty());  // has the place at once
  engine.cancel(ids[3]);
  engine.run_until_idle();
  const auto stats = engine.stats();
  EXPECT_EQ(stats.cancelled, 4);
  EXPECT_EQ(stats.finished, 1);
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_FALSE(engine.step());
}

TEST(Engine, WhatGoesWrongWithARequestIsItsOwn) {
  auto model = longer_model("llama");
  Engine engine(model, nullptr, {.max_rows = 8, .cache_tokens = 256});
  Told good, forbidden, thrown;
  GenerateOptions none = greedy(5);
  for (int64_t i = 0; i < 50; ++i) none.suppress_tokens.push_back(i);
  engine.submit(request_for(forbidden, {1, 2}, none));
  auto request = request_for(thrown, {3}, greedy(9));
  request.options.num_return_sequences = 3;
  request.on_token = [&](const GeneratedToken& token) -> bool {
    thrown.tokens[token.row].push_back(token.id);
    if (token.row == 1) throw std::runtime_error("the client is gone");
    return true;
  };
  engine.submit(std::move(request));
  engine.submit(request_for(good, {3, 4}, greedy(9)));
  engine.run_until_idle();
  EXPECT_THAT(forbidden.error, HasSubstr("every token is forbidden"));
  EXPECT_EQ(thrown.error, "the client is gone");
  EXPECT_EQ(thrown.tokens[1].size(), 1u);
  EXPECT_TRUE(thrown.done.empty());
  EXPECT_EQ(engine.stats().failed, 4);
  EXPECT_EQ(engine.stats().blocks_used, 0);
  expect_same(good, generate(model, {{3, 4}}, greedy(9)), "good");
  const auto throwing = [](const GeneratedToken&) -> bool { throw std::logic_error("enough"); };
  auto paged = greedy(3);
  paged.paged = true;
  EXPECT_THROW(generate(model, {{1}}, paged, throwing), std::logic_error);
}

TEST(Engine, LivesOnAfterTheModelFailed) {
  auto model = longer_model("llama");
  Engine engine(model, nullptr, {.max_rows = 4, .cache_tokens = 128});
  std::vector<Told> told(3);
  for (size_t i = 0; i < 2; ++i) engine.submit(request_for(told[i], {3, static_cast<int64_t>(i)}, greedy(6)));
  engine.step();
  auto& table = model->tokens->weight;
  const auto whole = std::exchange(table, table.detach().narrow(0, 0, 1));
  engine.step();
  for (const auto& each : {told[0], told[1]}) EXPECT_THAT(each.error, HasSubstr("index out of range"));
  EXPECT_EQ(engine.stats().failed, 2);
  EXPECT_EQ(engine.stats().blocks_used + engine.stats().running, 0);
  table = whole;
  // A request of a callback.
  auto last = request_for(told[2], {3, 1}, greedy(6));
  engine.submit({.prompt = {9}, .options = greedy(2), .on_done = [&](const Generated&) { engine.submit(last); }});
  engine.run_until_idle();
  expect_same(told[2], generate(model, {{3, 1}}, greedy(6)), "after");
}

TEST(Engine, RequestsOfManyThreads) {
  auto model = longer_model("llama");
  Engine engine(model, nullptr, {.max_rows = 4, .cache_tokens = 128});
  const auto expected = generate(model, {{7, 8, 9}}, greedy(6))[0].ids;
  std::atomic<int> ended = 0, equal = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 8; ++i) {
        EngineRequest request{.prompt = {7, 8, 9}, .options = greedy(6)};
        request.on_done = [&](const Generated& row) { ++ended, equal += row.ids == expected; };
        const auto id = engine.submit(std::move(request));
        if (i % 4 == 3) engine.cancel(id);
      }
    });
  while (ended < 24)
    if (engine.wait(std::chrono::milliseconds(100))) engine.step();
  for (auto& thread : threads) thread.join();
  EXPECT_GE(equal, 18);
  EXPECT_FALSE(engine.wait(std::chrono::milliseconds(0)));
}

TEST(Engine, AnyArrivalsGiveWhatRequestsGiveAlone) {
  for (uint64_t round = 0; round < 6; ++round) {
    Random random(17, round, 0);
    const std::vector<std::string> names{"llama_dynamic", "gpt_neox_odd", "gemma2", "qwen3", "opt", "bloom"};
    auto model = longer_model(names[round]);
    Engine engine(model, nullptr,
                  {.max_rows = random.integer(1, 9),
                   .cache_tokens = random.integer(60, 200),
                   .block_tokens = int64_t{1} << random.integer(0, 4),
                   .prefill_chunk = random.integer(1, 24),
                   .prefix_reuse = random.chance(0.7)});
    const auto common = random_ids(random, 20);
    std::vector<Told> told(14);
    std::vector<Ids> prompts;
    std::vector<GenerateOptions> options;
    std::vector<bool> cancelled(told.size(), false);
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < told.size();) {
      for (auto more = random.integer(0, 4); more > 0 && i < told.size(); --more, ++i) {
        auto prompt = random_ids(random, random.integer(1, 20));
        if (random.chance(0.5)) prompt.insert(prompt.begin(), common.begin(), common.begin() + random.integer(1, 20));
        prompts.push_back(prompt);
        options.push_back(some_options(random, 14));
        ids.push_back(engine.submit(request_for(told[i], prompt, options[i])));
      }
      for (auto steps = random.integer(0, 5); steps > 0; --steps) engine.step();
      if (i > 0 && random.chance(0.1)) {
        const auto who = static_cast<size_t>(random.below(i));
        engine.cancel(ids[who]);
        cancelled[who] = true;
      }
    }
    engine.run_until_idle();
    EXPECT_EQ(engine.stats().blocks_used, 0);
    for (size_t i = 0; i < told.size(); ++i) {
      const auto what = names[round] + " request " + std::to_string(i);
      const auto alone = generate(model, {prompts[i]}, options[i]);
      if (!cancelled[i]) {
        expect_same(told[i], alone, what);
        continue;
      }
      for (const auto& [row, found] : told[i].done)
        EXPECT_TRUE(std::equal(found.ids.begin(), found.ids.end(), alone[row].ids.begin())) << what;
    }
  }
}

TEST(Engine, KeysInBytesStayClose) {
  for (const std::string name : {"llama", "gemma2", "bloom", "opt"}) {
    auto model = longer_model(name);
    const auto ids = [&](const GenerateOptions& options) { return generate(model, kPrompts, options); };
    auto options = greedy(24);
    const auto exact = ids(options);
    for (const std::string dtype : {"int8", "fp8"}) {
      options.cache_dtype = dtype;
      options.paged = false;
      options.prefill_chunk = 512;
      const auto rows = ids(options);
      // How keys and values are laid out and in which chunks they came does not matter.
      options.paged = true;
      options.prefill_chunk = 3;
      const auto paged = ids(options);
      double most = 0, sum = 0;
      int64_t same = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(paged[i].ids, rows[i].ids) << name << dtype;
        for (size_t k = 0; k < rows[i].ids.size() && rows[i].ids[k] == exact[i].ids[k]; ++k, ++same) {
          const auto apart = std::abs(rows[i].logprobs[k] - exact[i].logprobs[k]);
          most = std::max(most, apart), sum += apart;
        }
      }
      EXPECT_GT(most, 0) << name << dtype;  // they are bytes
      EXPECT_LT(most, dtype == "int8" ? 0.05 : 0.2) << name << dtype;
      EXPECT_LT(sum / static_cast<double>(same), dtype == "int8" ? 0.01 : 0.05) << name << dtype;
      EXPECT_GT(same, 3 * 24 / 2) << name << dtype;
    }
    Engine plain(model, nullptr, {.cache_tokens = 64}),
        bytes(model, nullptr, {.cache_tokens = 64, .cache_dtype = "int8"});
    const auto width = static_cast<double>(model->options.head_width());
    EXPECT_EQ(plain.stats().blocks_total, 4);
    EXPECT_DOUBLE_EQ(static_cast<double>(bytes.stats().cache_bytes),
                     static_cast<double>(plain.stats().cache_bytes) * (width + 4) / (4 * width));
  }
}

TEST(Engine, TextsAndStopStringsAreThoseOfGenerate) {
  const auto tokenizer = text::Tokenizer::from_folder(kTests / "text/fixtures/gpt2");
  auto model = models::decoder(
      {.vocab_size = tokenizer.vocab_size(), .max_positions = 96, .num_layers = 2, .num_heads = 2, .hidden_dim = 32});
  GenerateOptions options{.max_new_tokens = 60, .num_return_sequences = 2, .seed = 5};
  const std::vector<std::string> prompts{"The sea", "A ship on"};
  const auto whole = generate(model, tokenizer, prompts, options);
  ASSERT_GT(whole[0].text.size(), 20u);
  options.stop = {whole[0].text.substr(9, 4), "neverthere"};
  const auto ended = generate(model, tokenizer, prompts, options);
  EXPECT_EQ(ended[0].finish_reason, "stop");
  options.paged = true;
  std::vector<std::string> streamed(4);
  const auto paged = generate(model, tokenizer, prompts, options, [&](const GeneratedToken& token) {
    streamed[token.row] += token.text;
    return true;
  });
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(paged[i].text, ended[i].text);
    EXPECT_EQ(paged[i].ids, ended[i].ids);
    EXPECT_EQ(paged[i].finish_reason, ended[i].finish_reason);
    EXPECT_EQ(streamed[i], ended[i].text);
  }
}

TEST(Engine, BadInputIsOneLine) {
  auto model = longer_model("llama");
  EXPECT_EQ(Engine(model, nullptr, {.max_rows = 3}).stats().blocks_total, 3 * 80 / 16);  // what rows and context need
  Engine engine(model, nullptr, {.cache_tokens = 32, .max_queue = 2});
  const auto error = [&](const Ids& prompt, const GenerateOptions& options) {
    return error_of([&] { engine.submit({.prompt = prompt, .options = options}); });
  };
  EXPECT_THAT(error(Ids(81, 3), greedy(1)), HasSubstr("the prompt has 81 tokens, the context of the model has 80"));
  EXPECT_THAT(error(Ids(30, 3), greedy(9)), HasSubstr("a prompt of 30 tokens and 9 new ones do not fit the cache"));
  EXPECT_THAT(error({}, greedy(1)), HasSubstr("the prompt has no tokens"));
  EXPECT_THAT(error({50}, greedy(1)), HasSubstr("the id 50"));
  EXPECT_THAT(error({1}, {.temperature = -1}), HasSubstr("temperature -1"));
  EXPECT_THAT(error({1}, {.stop = {"a"}}), HasSubstr("stop strings need a tokenizer"));
  EXPECT_THAT(error({1}, {.temperature = 0, .num_beams = 2}), HasSubstr("beams are not for requests"));
  EXPECT_EQ(error({1}, greedy(2)), "no error");
  EXPECT_EQ(error({1}, greedy(2)), "no error");
  EXPECT_THAT(error({1}, greedy(2)), HasSubstr("the queue is full: 2 of at most 2 wait"));
  engine.run_until_idle();
  EXPECT_EQ(error(Ids(30, 3), greedy(3)), "no error");
  const auto options_error = [&](const EngineOptions& options) {
    return error_of([&] { Engine(model, nullptr, options); });
  };
  EXPECT_THAT(options_error({.block_tokens = 12}), HasSubstr("block_tokens 12 must be a power of two"));
  EXPECT_THAT(options_error({.max_rows = 0}), HasSubstr("max_rows"));
  EXPECT_THAT(options_error({.cache_dtype = "int4"}), HasSubstr("known: auto, int8, fp8"));
  EXPECT_THAT(error_of([&] { Engine(models::Decoder(nullptr), nullptr); }), HasSubstr("there is no decoder"));
}

}  // namespace
}  // namespace levin::generate_tests
