// Cuts and windows that follow what was measured, on real ranks.
#include "ddip/pipeline/measured.h"

#include <numeric>

#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {
namespace {

// Two layers that take nearly all of the time, and many that take none: cut by numbers both would be in the first half.
torch::nn::Sequential two_heavy_layers() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(512, 512), torch::nn::Linear(512, 512), torch::nn::Linear(512, 3));
  for (int i = 0; i < 7; ++i) model->push_back(torch::nn::Linear(3, 3));
  return model;
}

std::vector<size_t> layers_in(const MeasuredCut& made) {
  std::vector<size_t> found;
  for (const Part& part : made.parts) found.push_back(part.module->children().size());
  return found;
}

at::Tensor composed(const MeasuredCut& made, const at::Tensor& x) {
  Value value{x};
  for (const Part& part : made.parts) value = part.forward(value);
  return *value.tensor();
}

// So that whatever changes is seen: statistics, and random numbers.
torch::nn::Sequential with_state() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.5),
                               torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Linear(8, 3));
}

}  // namespace

TEST(CppMeasured, heavy_layers_are_on_ranks_of_their_own) {
  on_ranks(2, [](const auto& ranks) {
    auto model = two_heavy_layers();
    const MeasuredCut made = measured_cut(*ranks, model, Value{torch::randn({256, 512})});
    require(layers_in(made) == std::vector<size_t>{1, 9}, "the cut lies between the two");
    const at::Tensor x = torch::randn({4, 512});
    require(torch::equal(composed(made, x), model->forward(x)), "the parts are the model");
    require(made.costs.stages.size() == 2 && made.costs.links.size() == 1, "a cost for each stage and link");
    const double first = made.costs.stages[0].micro_batch(), second = made.costs.stages[1].micro_batch();
    require(first > 0 && second > 0 && first < 4 * second && second < 4 * first, "which take about as long");
  });
}

TEST(CppMeasured, all_ranks_get_what_rank_0_found) {
  on_ranks(3, [](const auto& ranks) {
    const MeasuredCut made = measured_cut(*ranks, mlp(3, at::kFloat), Value{torch::randn({8, 6})}, {.stages = 3});
    std::vector<double> mine = made.costs.links;
    for (const auto& one : made.costs.stages) mine.insert(mine.end(), {one.forward, one.backward});
    for (size_t layers : layers_in(made)) mine.push_back(static_cast<double>(layers));
    const at::Tensor everybody = ranks->all_gather(at::tensor(mine, at::kDouble));
    require((everybody == everybody[0]).all().item<bool>(), "the same on all ranks");
    // And so they can run by it.
    Pipeline pipe(ranks, made.parts, mse, sgd, {.schedule = "1f1b", .micro_batches = 4, .costs = made.costs});
    Pairs batches = data(3, 8, 0, at::kFloat);
    pipe.run(batches);
    const double off = furthest(in_one_process(mlp(3, at::kFloat), batches), pipe.state());
    require(off < 1e-6, fmt::format("it is off by {}", off));
  });
}

TEST(CppMeasured, measuring_leaves_no_trace) {
  on_ranks(2, [](const auto& ranks) {
    auto model = with_state();
    for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
    const State before = state_of(*model);
    const at::Tensor x = torch::randn({8, 6}), kept = x.clone();
    torch::manual_seed(5);
    const at::Tensor next = torch::rand({4});
    torch::manual_seed(5);
    const MeasuredCut made = measured_cut(*ranks, model, Value{x});
    require(torch::equal(torch::rand({4}), next), "random numbers go on as if nothing had happened");
    require(furthest(before, state_of(*model)) == 0, "parameters and statistics are as they were");
    require(torch::equal(x, kept), "the example is as it was");
    for (const at::Tensor& parameter : model->parameters())
      require(torch::equal(parameter.grad(), at::ones_like(parameter)), "gradients are as they were");
    measured_costs(*ranks, made.parts, Value{x});
    require(furthest(before, state_of(*model)) == 0, "nor does measuring stages");
  });
}

TEST(CppMeasured, a_window_is_as_wide_as_the_links_ask_for) {
  on_ranks(2, [](const auto& ranks) {
    const schedule::Costs slow{.stages = {{1, 1, 1}, {1, 1, 1}}, .links = {3}};
    auto window = [&](PipelineOptions options) {
      options.costs = slow;
      return Pipeline(ranks, cut(mlp(), 2), mse, sgd, std::move(options)).plan().request.window;
    };
    require(window({.schedule = "async_1f1b"}) == std::vector<int>{3, 0}, "(3 + 2 * 3) / 3");
    require(window({.schedule = "1f1b"}) == std::vector<int>{3, 0}, "in synchronous schedules, too");
    require(window({.schedule = "async_1f1b", .window = {1, 0}}) == std::vector<int>{1, 0}, "unless one is given");
    require(window({.schedule = "paci", .accumulate = 4})[0] == 1, "paci does not run ahead more than a step");
    // What was planned is what runs.
    Pairs batches = data(4, 8);
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd,
                  {.schedule = "async_1f1b", .staleness = "stash", .micro_batches = 4, .costs = slow});
    const Report report = pipe.run(batches);
    require(report.stages[0].staleness.rbegin()->first == 3, "three steps old");
  });
}

TEST(CppMeasured, stages_with_edges_of_their_own_are_measured) {
  on_ranks(2, [](const auto& ranks) {
    torch::nn::Linear first(6, 8), middle(8, 8), last(8, 3);
    const std::vector<Part> stages = {
        Part(first.ptr(), [first](const at::Tensor& x) mutable { return first(x); }),
        middle,
        Part(last.ptr(), [last](const at::Tensor& skipped, const at::Tensor& x) mutable { return last(skipped + x); }),
    };
    const std::vector<schedule::Edge> edges = {{0, 1}, {0, 2}, {1, 2}};
    const schedule::Costs costs = measured_costs(*ranks, stages, Value{torch::randn({4, 6})}, edges);
    require(costs.stages.size() == 3 && costs.links.size() == 3, "of three stages and three links");
    require(costs.links[0] == costs.links[1] && costs.links[1] == costs.links[2], "all of which carry as much");
    require(costs.links[0] > 0 && std::ranges::all_of(costs.stages, [](const auto& one) { return one.forward > 0; }),
            "and take some time");
  });
}

TEST(CppMeasured, what_cannot_be_measured_is_refused_on_all_ranks) {
  on_ranks(2, [](const auto& ranks) {
    const std::string where = ranks->rank() == 0 ? "" : "rank 0: ";
    auto model = mlp(1, at::kFloat);
    const std::string said = refusal([&] { measured_cut(*ranks, model, Value{torch::randn({4, 5})}); });
    require(said.starts_with(where + "layer 0 (Linear) cannot run with Float [4, 5]: "), said);
    require(refusal([&] { measured_cut(*ranks, model, Value{torch::randn({4, 6})}, {.stages = 4}); }) ==
                "4 stages of a model with 3 layers: expected at most 3",
            "more stages than layers");
    require(refusal([&] {
              Pipeline(ranks, cut(model, 2), mse, sgd, {.costs = {.stages = {{1, 1, 1}}, .links = {}}});
            }).starts_with("costs has 1 entries: expected 2"),
            "costs of another cut");
    measured_cut(*ranks, model, Value{torch::randn({4, 6})});  // and the ranks go on
  });
}

}  // namespace ddip::pipeline
