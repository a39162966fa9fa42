// One pipeline over several runs, on real ranks: phases, rates, ledgers, batches.
#include <fstream>
#include <iterator>
#include <regex>

#include "ddip/pipeline/testing/folder.h"
#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {
namespace {

void says(const std::string& said, const std::string& expected) {
  require(said.find(expected) != std::string::npos, expected + " is in: " + said);
}

int64_t stale(const Pipeline& pipe) {
  return std::ranges::count_if(pipe.plan().ranks[0], [](const schedule::Action& one) { return one.staleness > 0; });
}

bool notes_have(const Pipeline& pipe, const std::string& text) {
  return std::ranges::any_of(pipe.notes(), [&](const auto& note) { return note.find(text) != std::string::npos; });
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST(CppPipelineRuns, a_plan_of_ones_own_is_run_as_it_is_or_refused) {
  on_ranks(2, [](const auto& ranks) {
    const auto made = [&](PipelineOptions options) {
      options.micro_batches = 4;
      return std::make_unique<Pipeline>(ranks, cut(mlp(2), 2), mse, sgd, options);
    };
    const auto refused = [&](Pipeline& pipe, const schedule::Plan& plan, const std::string& said) {
      const std::string found = refusal([&] { pipe.run(data(2, 8), plan); });
      require(found.find(said) != std::string::npos, found);
    };
    // A narrower window, and more room than the pipeline has: its messages get it.
    const auto wide = made({.staleness = "stash", .window = {3, 0}});
    const auto narrow = made({.staleness = "stash", .window = {1, 0}});
    schedule::Plan own = narrow->plan_of(2);
    own.capacity = {7, 7};
    wide->run(data(2, 8), own);
    narrow->run(data(2, 8));
    require(wide->plan().ranks == own.ranks, "that plan");
    require(furthest(wide->state(), narrow->state()) == 0, "what it computes is the narrow one's");
    wide->run(data(2, 8));
    require(wide->plan().ranks != own.ranks, "the next run has the usual one");
    refused(*narrow, wide->plan_of(2), "weights of stage 0 that are 3 steps old, the pipeline at most 1");
    refused(*wide, made({.schedule = "1f1b"})->plan_of(2), "the plan has schedule=1f1b, this run async_1f1b");
    refused(*wide, wide->plan_of(3), "the plan has batches=3, this run 2");
    own.ranks[1].pop_back();
    refused(*wide, own, "the plan is refused: ");
    const schedule::Plan good = wide->plan_of(2);
    const std::string said = refusal([&] { ranks->rank() == 0 ? wide->run(data(2, 8)) : wide->run(data(2, 8), good); });
    require(said.find("every rank must run the same pipeline") != std::string::npos, said);
    require(wide->run(data(2, 8)).losses.size() == 2, "it trains still");
  });
}

TEST(CppPipelineRuns, phases_count_the_batches_of_earlier_runs) {
  on_ranks(2, [&](const auto& ranks) {
    auto runs = [&](PipelineOptions options) {
      options.staleness = "none";
      Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, options);
      std::vector<int64_t> found;
      for (int run = 0; run < 3; ++run) {
        pipe.run(data(4, 12));
        found.push_back(stale(pipe));
      }
      return found;
    };
    const int64_t all = runs({.micro_batches = 4})[0];
    const auto warm = runs({.micro_batches = 4, .warmup = 6}), switched = runs({.micro_batches = 4, .switch_at = 6});
    require(warm[0] == 0 && warm[1] > 0 && warm[1] < all && warm[2] == all, "a warm-up is done once");
    require(switched[0] == all && switched[1] > 0 && switched[1] < all && switched[2] == 0, "so is a switch");
  });
}

TEST(CppPipelineRuns, a_rate_set_where_none_was_planned_scales_the_later_ones) {
  on_ranks(2, [&](const auto& ranks) {
    const RateFactor rising = [](int64_t step) { return std::min(1.0, static_cast<double>(step) / 4); };
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.schedule = "gpipe", .micro_batches = 4, .scheduler = rising});
    pipe.optimizer(ranks->rank())->param_groups()[0].options().set_lr(0.001);
    pipe.run(data(8, 12));
    const RateFactor expected = [&](int64_t step) { return (step == 0 ? 1 : rising(step)) * 0.001 / 0.05; };
    require(furthest(in_one_process(mlp(), data(8, 12), sgd, 1, expected), pipe.state()) < 1e-12, "from the first on");
  });
}

TEST(CppPipelineRuns, a_stage_whose_optimizer_the_policy_does_not_know_is_refused_on_all_ranks) {
  on_ranks(2, [&](const auto& ranks) {
    const MakeOptimizer mixed = [](const auto& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      if (parameters[0].size(1) == 6) return sgd(parameters);
      return std::make_unique<torch::optim::Adam>(parameters);
    };
    says(refusal([&] { Pipeline(ranks, cut(mlp(), 2), mse, mixed); }),
         "staleness=\"msnag\": stage 1: msnag is for SGD; for adam use adam");
    Pipeline kept(ranks, cut(mlp(), 2), mse, mixed, {.staleness = "stash"});
    require(kept.run(data(2, 16)).losses.size() == 2, "their weights can be kept");
  });
}

TEST(CppPipelineRuns, a_ledger_that_cannot_have_a_run_ends_before_it_and_training_goes_on) {
  const Folder folder;
  on_ranks(2, [&](const auto& ranks) {
    const auto path = folder.path() / "run.ledger";
    if (ranks->rank() == 0) std::filesystem::create_directories(folder.path());
    ranks->barrier();
    auto made = [&](const std::filesystem::path& ledger) {
      auto model = mlp();
      torch::nn::Sequential first = layers(model, 0, 2);
      first->push_back(torch::nn::Dropout(0.5));  // what is drawn depends on how many micro-batches were before
      return std::make_unique<Pipeline>(ranks, std::vector<Part>{first, layers(model, 2, 3)}, mse, sgd,
                                        PipelineOptions{.micro_batches = 4, .ledger = ledger});
    };
    auto noted = made(path), plain = made({});
    ranks->barrier();
    if (ranks->rank() == 0) std::filesystem::remove_all(folder.path());
    ranks->barrier();
    require(noted->run(data(3, 12)).losses.size() == 3, "its report is there");
    require(notes_have(*noted, "ends before a run that could not be written"), "it is said");
    if (ranks->rank() == 0) std::filesystem::create_directories(folder.path());
    ranks->barrier();
    noted->run(data(3, 12));
    for (int run = 0; run < 2; ++run) plain->run(data(3, 12));
    require(furthest(noted->state(), plain->state()) == 0, "the next run draws what it would have drawn");
    require(!std::filesystem::exists(path), "nothing false is written later");

    auto changed = made(path);
    changed->run(data(3, 12));
    ranks->barrier();
    const std::string before = text_of(path);
    auto& options = changed->optimizer(ranks->rank())->param_groups()[0].options();
    static_cast<torch::optim::SGDOptions&>(options).weight_decay(0.1);
    changed->run(data(3, 12));
    require(notes_have(*changed, "ends before a run with other options of an optimizer"), "that is said, too");
    ranks->barrier();
    require(text_of(path) == before, "the header is still true of what is there");
  });
}

TEST(CppPipelineRuns, tensors_of_other_lengths_are_refused) {
  const at::Tensor four = at::zeros({4, 2}), eight = at::zeros({8, 2});
  const auto cut_of = [](Value x, Value y) { return cut_batch(Batch(std::move(x), std::move(y)), 2, 0, 1); };
  const auto both = [](const at::Tensor& a, const at::Tensor& b) { return Value{Value::Tuple{{Value{a}, Value{b}}}}; };
  says(refusal([&] { cut_of(both(four, eight), Value{four}); }),
       "the inputs of batch 0 are tensors of 4, 8 samples; expected as many in each");
  says(refusal([&] { cut_of(Value{four}, both(four, eight)); }), "the targets of batch 0 are tensors of 4, 8 samples");
  // One without dimensions goes to every micro-batch, wherever it stands.
  const auto parts = cut_of(both(at::full({}, 3.0), four), Value{four});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].samples, 2);
  EXPECT_EQ(tensors_of(parts[1].x)[0].item<double>(), 3);
}

TEST(CppPipelineRuns, a_run_is_drawn_with_a_box_for_each_action_and_messages_that_go_forward_in_time) {
  Folder folder;
  std::filesystem::create_directories(folder.path());
  const auto path = folder.path() / "timeline.svg";
  on_ranks(4, [&](const auto& ranks) {
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd,
                  {.schedule = "async_1f1b", .staleness = "stash", .micro_batches = 4, .replicas = 2});
    const Report report = pipe.run(data(3, 8));
    if (ranks->rank() == 0) report.save_timeline(path);
  });
  std::ifstream file(path);
  const std::string picture(std::istreambuf_iterator<char>(file), {});
  const auto count = [&](const std::string& pattern) {
    const std::regex expression(pattern);
    return std::distance(std::sregex_iterator(picture.begin(), picture.end(), expression), std::sregex_iterator());
  };
  // Two stages of one replica, 12 micro-batches, and what colours mean. A step has a head.
  EXPECT_EQ(count("stroke=\"#2f6ca3\" stroke-width=\"0.8\""), 24 + 1) << "forwards";
  EXPECT_EQ(count("fill=\"#f9d9b0\" stroke"), 24 + 1) << "backwards";
  EXPECT_EQ(count("l-4 -5h8z"), 24 + 1) << "steps";
  const std::regex line(
      "<line x1=\"([0-9.]+)\" y1=\"[0-9.]+\" x2=\"([0-9.]+)\" y2=\"[0-9.]+\" stroke=\"#[0-9a-f]+\" stroke-width");
  int messages = 0;
  for (auto one = std::sregex_iterator(picture.begin(), picture.end(), line); one != std::sregex_iterator();
       ++one, ++messages)
    EXPECT_LE(std::stod((*one)[1]), std::stod((*one)[2]) + 0.11) << one->str();
  EXPECT_EQ(messages, 24 + 1) << "activations and gradients, and the hatch";
}

// What tests/test_pipeline_trace.py reads: two pipelines side by side, of three stages on two ranks each.
TEST(CppPipelineRuns, trace_for_readers) {
  const char* folder = std::getenv("DDIP_TEST_TRACE");
  if (!folder) GTEST_SKIP() << "tests/test_pipeline_trace.py asks for it";
  on_ranks(4, [&](const auto& ranks) {
    Pipeline pipe(ranks, cut(mlp(2), 3), mse, sgd,
                  {.schedule = "async_1f1b", .staleness = "msnag", .micro_batches = 4, .replicas = 2});
    const Report report = pipe.run(data(3, 8));
    if (ranks->rank() != 0) return;
    report.save_trace(std::filesystem::path(folder) / "trace.json");
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& [rank, action, begin, end] : report.trace)
      rows.push_back({{"rank", rank},
                      {"kind", std::string(schedule::name_of(action.kind))},
                      {"stage", action.stage},
                      {"micro_batch", action.micro_batch},
                      {"version", action.version},
                      {"staleness", action.staleness},
                      {"begin", begin},
                      {"end", end}});
    std::ofstream(std::filesystem::path(folder) / "rows.json") << rows;
  });
}

}  // namespace ddip::pipeline
