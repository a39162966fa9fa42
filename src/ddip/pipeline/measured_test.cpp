// Cuts and windows that follow what was measured, on real ranks.
#include "ddip/pipeline/measured.h"

#include <algorithm>
#include <thread>

#include "ddip/pipeline/layer_cost.h"
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

// 16 MiB of which a forward reads a row, and which no backward reaches.
struct TableImpl : torch::nn::Module {
  at::Tensor table = register_parameter("table", torch::zeros({8192, 512}), /*requires_grad=*/false);
  at::Tensor forward(const at::Tensor& x) { return x + table[0]; }
};
TORCH_MODULE(Table);

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

TEST(CppMeasured, a_module_that_a_stage_has_twice_is_there_twice) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    torch::nn::Linear shared(8, 8);
    torch::nn::Sequential model(shared, torch::nn::Tanh(), shared, torch::nn::Linear(8, 1024),
                                torch::nn::Linear(1024, 1024));
    const MeasuredCut made = measured_cut(*ranks, model, Value{torch::randn({256, 8})});
    const at::Tensor x = torch::randn({4, 8});
    require(torch::equal(composed(made, x), model->forward(x)), "the parts are the model");
  });
}

TEST(CppMeasured, what_a_forward_keeps_is_counted) {
  on_ranks(1, [](const auto&) {
    const auto kept = [](Part part, bool gradients = true) {
      return LayerCost(part, {.name = "it", .elsewhere = at::kCPU, .outgoing = 1, .gives_gradients = gradients},
                       {Value{torch::ones({64, 512})}})
          .count_activations();
    };
    constexpr uint64_t kWide = 64 * 512 * 4, kNarrow = 64 * 128 * 4;
    require(kept(torch::nn::Linear(512, 128)) == kWide, "its input, not what it gives");
    require(kept(torch::nn::Tanh()) == kWide, "its output, not its input");
    require(kept(torch::nn::Sequential(torch::nn::Linear(512, 128), torch::nn::Tanh(), torch::nn::Linear(128, 3))) ==
                kWide + kNarrow,
            "what two layers keep counts once");
    require(kept(torch::nn::ReLU(torch::nn::ReLUOptions(true))) == kWide, "also what was changed in place");
    require(kept([](const at::Tensor& x) { return x * 2 + 1; }) == 0, "a sum needs nothing");
    require(kept(torch::nn::Tanh(), false) == 0, "nor does what has no backward");
    torch::nn::Linear frozen(512, 128);
    frozen->weight.requires_grad_(false);
    frozen->bias.requires_grad_(false);
    require(kept(frozen) == 0, "frozen weights need no input");
  });
}

TEST(CppMeasured, a_limit_on_memory_is_respected_or_refused) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    torch::nn::Sequential model(torch::nn::Linear(512, 512), torch::nn::Linear(512, 512), Table(), Table());
    const Value example{torch::randn({256, 512})};
    const auto layers_with = [&](uint64_t mebibytes) {
      return layers_in(measured_cut(*ranks, model, example, {.memory_cap = mebibytes << 20}));
    };
    require(layers_with(0) == std::vector<size_t>{1, 3}, "fastest, with both tables on one rank");
    require(layers_with(200) == std::vector<size_t>{1, 3}, "which fits: four copies of each");
    require(layers_with(100) == std::vector<size_t>{3, 1}, "if it does not, they lie apart");
    const std::string where = ranks->rank() == 0 ? "" : "rank 0: ";
    const std::string said = refusal([&] { layers_with(50); });
    require(said == where + "no cut into 2 stages fits in 50 MiB per device", said);
  });
}

// A link that takes time asks for a micro-batch more under way, for which there may be no room.
TEST(CppMeasured, a_window_that_needs_more_memory_than_there_is_is_the_textbooks) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    torch::nn::Sequential model(torch::nn::Linear(512, 512), torch::nn::Tanh(), torch::nn::Linear(512, 512),
                                torch::nn::Tanh());
    const Value example{torch::randn({4096, 512})};  // 8 MiB for each layer of stage 0, and each micro-batch
    const auto window_in = [&](uint64_t mebibytes) {
      const MeasuredCut made = measured_cut(*ranks, model, example, {.memory_cap = mebibytes << 20});
      require(layers_in(made) == std::vector<size_t>{2, 2}, "two halves");
      Pipeline pipe(ranks, made.parts, mse, sgd,
                    {.schedule = "1f1b", .micro_batches = 4, .window = made.window, .costs = made.costs});
      return pipe.plan().request.window;
    };
    require(window_in(1000) == std::vector<int>{2, 0}, "as wide as the link asks for");
    require(window_in(42) == std::vector<int>{1, 0}, "4 MiB of weights, and 16 for each of two");
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

// Two layers side by side, of which each takes half of the time, and a sum.
TEST(CppMeasured, branches_are_on_ranks_of_their_own) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    Graph graph;
    const auto x = graph.input();
    const auto left = graph.add("left", torch::nn::Linear(512, 512), {x});
    const auto right = graph.add("right", torch::nn::Linear(512, 512), {x});
    graph.add("sum", [](const at::Tensor& a, const at::Tensor& b) { return a + b; }, {left, right});
    const MeasuredCut made = measured_cut(*ranks, graph, Value{torch::randn({256, 512})});
    require(made.parts.size() == 2 && made.placement.empty(), "a stage on each rank");
    for (const Part& part : made.parts) require(parameters_of(part).size() == 2, "with one of the layers");
    require(made.edges == std::vector<schedule::Edge>{{0, 1}}, "which the input passes, too");
    Pairs batches;
    for (int batch = 0; batch < 2; ++batch) batches.emplace_back(torch::randn({8, 512}), torch::randn({8, 512}));
    Pipeline pipe(ranks, made.parts, mse, sgd,
                  {.schedule = "1f1b", .micro_batches = 2, .edges = made.edges, .costs = made.costs});
    const double first = pipe.run(batches).loss;
    require(pipe.run(batches).loss < first, "and it learns");
  });
}

// A U of four layers on two ranks: the outer ones on one, the inner ones on the other.
TEST(CppMeasured, a_graphs_beginning_lies_beside_its_end) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    const auto joined = [](const torch::nn::Linear& layer) {
      return Part(layer.ptr(), [layer = layer](const at::Tensor& deep, const at::Tensor& skip) mutable {
        return layer(torch::cat({deep, skip}, 1));
      });
    };
    Graph graph;
    const auto outer = graph.add("down0", torch::nn::Linear(256, 256), {graph.input()});
    const auto inner = graph.add("down1", torch::nn::Linear(256, 256), {outer});
    const auto bridge = graph.add("bridge", torch::nn::Linear(256, 256), {inner});
    const auto back = graph.add("up1", joined(torch::nn::Linear(512, 256)), {bridge, inner});
    graph.add("up0", joined(torch::nn::Linear(512, 3)), {back, outer});
    const MeasuredCut made = measured_cut(*ranks, graph, Value{torch::randn({128, 256})}, {.placement = "mirrored"});
    require(made.placement == std::vector<int>{0, 1, 0}, "there and back");
    require(made.edges == std::vector<schedule::Edge>{{0, 1}, {0, 2}, {1, 2}}, "the skip is an edge of its own");
    require(made.costs.links.size() == 3 && made.costs.links[1] > 0, "which would cost something on a link");
    const Value x{torch::randn({4, 256})};
    const at::Tensor whole = *graph.run(x).tensor();
    Pipeline pipe(ranks, made.parts, [](const at::Tensor& out, const at::Tensor& y) { return (out - y).abs().sum(); },
                  sgd,
                  {.schedule = "1f1b",
                   .micro_batches = 1,
                   .placement = made.placement,
                   .edges = made.edges,
                   .costs = made.costs});
    require(pipe.plan().request.message_time(1) == 0, "but crosses none");
    Pairs batches;
    batches.emplace_back(*x.tensor(), whole.detach());
    require(pipe.evaluate(batches).loss < 1e-3, "the stages are the model");
    require(refusal([&] { measured_cut(*ranks, graph, x, {.placement = "mirorred"}); }) ==
                "placement=\"mirorred\": expected single, mixed, mirrored; did you mean mirrored?",
            "a misspelled placement");
    torch::nn::Sequential chain(torch::nn::Linear(256, 256), torch::nn::Linear(256, 256), torch::nn::Linear(256, 256));
    require(refusal([&] {
              measured_cut(*ranks, chain, x, {.placement = "mirrored"});
            }).find("nothing of this graph lies beside its mirror on 2 ranks") != std::string::npos,
            "a chain has no mirror");
  });
}

TEST(CppMeasured, a_rank_may_have_several_stages_of_a_graph) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    Graph graph;
    auto before = graph.input();
    for (const char* name : {"a", "b", "c", "d"}) before = graph.add(name, torch::nn::Linear(128, 128), {before});
    const Value x{torch::randn({64, 128})};
    const MeasuredCut made = measured_cut(*ranks, graph, x, {.placement = "mixed"});
    require(made.parts.size() == made.placement.size() && made.parts.size() == made.costs.stages.size(),
            "a rank and a cost for each");
    require(std::ranges::count(made.placement, 0) > 0 && std::ranges::count(made.placement, 1) > 0, "on both ranks");
    Pairs batches;
    batches.emplace_back(*x.tensor(), graph.run(x).tensor()->detach());
    Pipeline pipe(ranks, made.parts, mse, sgd,
                  {.schedule = "gpipe",
                   .micro_batches = 4,
                   .placement = made.placement,
                   .edges = made.edges,
                   .costs = made.costs});
    require(pipe.evaluate(batches).loss < 1e-9, "the stages are the model");
    require(refusal([&] {
              measured_cut(*ranks, graph, x, {.stages = 4, .memory_cap = 1 << 30});
            }).starts_with("memory_cap with 4 stages on 2 ranks"),
            "nobody knows which stages share a rank");
  });
}

// An image that the first layer and the last one read: the edge that brings it costs something, too.
TEST(CppMeasured, an_input_that_a_late_stage_reads_costs_its_bytes) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    Graph graph;
    const auto image = graph.input("image");
    const auto first = graph.add("first", torch::nn::Linear(4096, 64), {image});
    graph.add("last", [](const at::Tensor& a, const at::Tensor& b) { return a.sum() + b.sum(); }, {first, image});
    const MeasuredCut made = measured_cut(*ranks, graph, Value{torch::randn({64, 4096})});
    const schedule::Costs again = measured_costs(*ranks, made.parts, Value{torch::randn({64, 4096})}, made.edges);
    const double ratio = made.costs.links.at(0) / again.links.at(0);
    require(ratio > 0.25 && ratio < 4, fmt::format("{} times what its stages send; 64 without the image", ratio));
  });
}

// Alone they would be the best halves.
TEST(CppMeasured, layers_that_share_weights_stay_together) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    torch::nn::Linear shared(256, 256), small(256, 256), last(256, 3);
    Graph graph;
    const auto first = graph.add("first", shared, {graph.input()});
    const auto middle = graph.add("middle", torch::nn::Tanh(), {first});
    const auto again = graph.add("again", shared, {middle});
    graph.add("last", last, {graph.add("small", small, {again})});
    for (const char* placement : {"single", "mixed"}) {
      const MeasuredCut made = measured_cut(*ranks, graph, Value{torch::randn({512, 256})}, {.placement = placement});
      require(made.parts.size() >= 2 && parameters_of(made.parts[0]).size() >= 2, "cut");
      require(made.parts[0].name.starts_with("first … again") || made.parts[0].name.starts_with("first … small"),
              made.parts[0].name);
    }
  });
}

// An image that a late stage reads has to be brought there: that is dearer than to compute on one rank what reads it.
TEST(CppMeasured, an_input_that_is_read_late_is_reckoned_with_where_to_cut) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    Graph graph;
    const auto image = graph.input("image");  // of whole numbers: no gradient of its size is computed
    const auto corner = [](const at::Tensor& x) { return x.narrow(1, 0, 64).to(at::kFloat); };
    const auto small = graph.add("small", corner, {image});
    const auto one = graph.add("one", torch::nn::Linear(64, 64), {small});
    const auto two = graph.add("two", torch::nn::Linear(64, 64), {one});
    const auto look =
        graph.add("look", [corner](const at::Tensor& a, const at::Tensor& x) { return a + corner(x); }, {two, image});
    graph.add("last", torch::nn::Linear(64, 3), {look});
    const MeasuredCut made = measured_cut(*ranks, graph, Value{torch::ones({256, 16384}, at::kLong)});
    require(made.edges.size() == 1, "one edge");
    require(made.parts[0].name.ends_with("look"), made.parts[0].name);
  });
}

TEST(CppMeasured, a_layer_may_be_called_input) {
  on_ranks(2, [](const auto& ranks) {
    torch::nn::Sequential model({{"input", torch::nn::AnyModule(torch::nn::Linear(6, 8))},
                                 {"input'", torch::nn::AnyModule(torch::nn::Linear(8, 3))}});
    require(measured_cut(*ranks, model, Value{torch::randn({4, 6})}).parts.size() == 2, "as any other");
  });
}

TEST(CppMeasured, measuring_a_graph_leaves_no_trace_and_finds_what_is_changed_in_place) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(1);
    torch::nn::Linear first(6, 8), last(8, 3);
    torch::nn::BatchNorm1d norm(8);
    torch::nn::Dropout dropout(0.5);
    const auto graph_with = [&](bool in_place) {
      Graph graph;
      const auto hidden = graph.add("first", first, {graph.input()});
      const auto normed = graph.add("norm", norm, {hidden});
      const auto dropped = graph.add("drop", dropout, {normed});
      const auto bent = graph.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions(in_place)), {hidden});
      graph.add("last",
                Part(last.ptr(), [last](const at::Tensor& a, const at::Tensor& b,
                                        const at::Tensor& c) mutable { return last(a + b + c); }),
                {dropped, bent, hidden});
      return graph;
    };
    const State before = state_of(*norm), weights = state_of(*first);
    torch::manual_seed(5);
    const at::Tensor next = torch::rand({4});
    torch::manual_seed(5);
    const at::Tensor x = torch::randn({8, 6}), kept = x.clone();
    torch::manual_seed(5);
    measured_cut(*ranks, graph_with(false), Value{x});
    require(torch::equal(torch::rand({4}), next), "random numbers go on as if nothing had happened");
    require(furthest(before, state_of(*norm)) == 0 && furthest(weights, state_of(*first)) == 0, "nothing has changed");
    require(torch::equal(x, kept), "nor has the example");
    const std::string where = ranks->rank() == 0 ? "" : "rank 0: ";
    const std::string said = refusal([&] { measured_cut(*ranks, graph_with(true), Value{x}); });
    require(said == where +
                        "layer \"relu\" changes \"first\" in place, which \"last\" reads, too: expected a layer that "
                        "leaves it as it is",
            said);
  });
}

// As the executor has it: of samples, and of what comes from frozen stages, no gradients are asked.
TEST(CppMeasured, gradients_are_computed_only_where_they_will_be) {
  on_ranks(2, [](const auto& ranks) {
    std::vector<bool> asked;
    const auto noting = [&asked](torch::nn::Linear layer) {
      return Part(layer.ptr(), [&asked, layer](const at::Tensor& x) mutable {
        if (at::GradMode::is_enabled()) asked.push_back(x.requires_grad());
        return layer(x);
      });
    };
    torch::nn::Linear frozen(6, 6);
    for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    const std::vector<Part> stages = {noting(frozen), noting(torch::nn::Linear(6, 6)), noting(torch::nn::Linear(6, 3))};
    measured_costs(*ranks, stages, Value{torch::randn({4, 6})});
    if (ranks->rank() != 0) return require(asked.empty(), "rank 0 measures");
    require(asked.size() >= 6, "each several times");
    for (size_t i = 0; i < asked.size(); ++i) require(asked[i] == (i % 3 == 2), fmt::format("call {}", i));
  });
}

TEST(CppMeasured, losses_of_a_stages_own_are_measured_and_not_kept) {
  on_ranks(2, [](const auto& ranks) {
    auto losses = std::make_shared<std::vector<at::Tensor>>();
    torch::nn::Linear first(6, 8), last(8, 3);
    Part with_loss(first.ptr(), [first, losses](const at::Tensor& x) mutable {
      at::Tensor hidden = first(x);
      losses->push_back(hidden.square().mean());
      return hidden;
    });
    int taken = 0;
    with_loss.auxiliary_losses = [losses, &taken] {
      ++taken;
      return std::exchange(*losses, {});
    };
    measured_costs(*ranks, {with_loss, last}, Value{torch::randn({4, 6})});
    require(losses->empty(), "none is left");
    require((taken > 0) == (ranks->rank() == 0), "rank 0 measures");
    Pipeline pipe(ranks, {with_loss, last}, mse, sgd, {.schedule = "1f1b", .micro_batches = 4});
    pipe.run(data(2, 8, 0, at::kFloat));  // with those of its own micro-batches alone
  });
}

TEST(CppMeasured, a_stage_that_runs_again_is_reckoned_with_it) {
  on_ranks(2, [](const auto& ranks) {
    const MeasuredCut made =
        measured_cut(*ranks, two_heavy_layers(), Value{torch::randn({256, 512})}, {.recompute = true});
    const auto& [first, last] = std::pair(made.costs.stages[0], made.costs.stages[1]);
    // A backward of the first layer computes the gradient of its weights alone, about as long as a forward.
    require(first.backward + first.weight_gradient > 1.5 * first.forward, "its backward has a forward in it");
    require(last.forward > 0, "and the last one has not");
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
    require(refusal([&] { measured_costs(*ranks, cut(model, 2), Value{torch::randn({4, 6})}, {{0, 1}, {1, 2}}); }) ==
                "edge 1 -> 2: expected a stage and a later one of 2",
            "an edge to nowhere");
    torch::nn::Linear shared(6, 6);
    torch::nn::Sequential twice(shared, torch::nn::Tanh(), shared);
    require(refusal([&] { measured_cut(*ranks, twice, Value{torch::randn({4, 6})}); })
                    .find("2 stages of a graph with 3 layers, of which some share weights or buffers and stay together "
                          "with all "
                          "between them: expected at most 1") != std::string::npos,
            "a layer that is there twice");
    struct Unhappy : torch::autograd::Function<Unhappy> {
      static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
      static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                     torch::autograd::variable_list) {
        throw std::runtime_error("no way back");
      }
    };
    const std::vector<Part> one_way = {torch::nn::Linear(6, 6), [](const at::Tensor& x) { return Unhappy::apply(x); }};
    const std::string back = refusal([&] { measured_costs(*ranks, one_way, Value{torch::randn({4, 6})}); });
    require(back == where + "stage 1 (a function) cannot run backward: no way back", back);
    measured_cut(*ranks, model, Value{torch::randn({4, 6})});  // and the ranks go on
  });
}

}  // namespace ddip::pipeline
