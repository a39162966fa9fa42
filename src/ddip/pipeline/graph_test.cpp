// Models with branches as stages, beside the same model in one process.
#include "ddip/pipeline/graph.h"

#include <algorithm>

#include "ddip/pipeline/graph_cut.h"
#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {
namespace {

using torch::nn::Linear;

// Two values, of which one is read by the last layer only.
struct SplitterImpl : torch::nn::Module {
  Linear left{nullptr}, right{nullptr};
  SplitterImpl() {
    left = register_module("left", Linear(8, 8));
    right = register_module("right", Linear(8, 4));
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {torch::tanh(left(x)), right(x).sin()}; }
};
TORCH_MODULE(Splitter);

struct JoinImpl : torch::nn::Module {
  Linear deep{nullptr}, skip{nullptr};
  JoinImpl() {
    deep = register_module("deep", Linear(8, 3));
    skip = register_module("skip", Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return deep(a) + skip(b); }
};
TORCH_MODULE(Join);

// The model in plain libtorch: a skip, a value of two readers, an input that is read late, a tuple, a plain function.
struct PlainImpl : torch::nn::Module {
  Linear down{nullptr}, deep{nullptr}, late{nullptr};
  Splitter split{nullptr};
  Join join{nullptr};

  PlainImpl() {
    torch::manual_seed(0);
    down = register_module("down", Linear(6, 8));
    split = register_module("split", Splitter());
    deep = register_module("deep", Linear(8, 8));
    join = register_module("join", Join());
    late = register_module("late", Linear(6, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor first = torch::tanh(down(x));
    const auto [left, right] = split(first);
    const at::Tensor lower = torch::relu(deep(left));
    return join(lower, first) + late(x) * right.sum(1, true);
  }
};
TORCH_MODULE(Plain);

Graph graph_of(const Plain& net) {
  Graph graph;
  const auto x = graph.input("image");
  Linear down = net->down, deep = net->deep, late = net->late;
  const auto first =
      graph.add("down", Part(down.ptr(), [down](const at::Tensor& in) mutable { return torch::tanh(down(in)); }), {x});
  const auto split = graph.add("split", net->split, {first});
  const auto left =
      graph.add("left", [](const std::tuple<at::Tensor, at::Tensor>& both) { return std::get<0>(both); }, {split});
  const auto lower = graph.add(
      "deep", Part(deep.ptr(), [deep](const at::Tensor& in) mutable { return torch::relu(deep(in)); }), {left});
  const auto joined = graph.add("join", net->join, {lower, first});
  const auto last = graph.add("late", late, {x});
  graph.add("sum",
            [](const at::Tensor& a, const at::Tensor& b, const std::tuple<at::Tensor, at::Tensor>& both) {
              return a + b * std::get<1>(both).sum(1, true);
            },
            {joined, last, split});
  return graph;
}

// One weight at both ends.
struct TiedImpl : torch::nn::Module {
  Linear table{nullptr}, deep{nullptr};

  TiedImpl() {
    torch::manual_seed(0);
    table = register_module("table", Linear(6, 8));
    deep = register_module("deep", Linear(8, 8));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::matmul(torch::tanh(deep(torch::tanh(table(x)))), table->weight).slice(1, 0, 3);
  }
};
TORCH_MODULE(Tied);

// The first layer lends it: a copy goes along with each micro-batch, and its gradient comes back.
Graph graph_of(const Tied& net) {
  Graph graph;
  Linear table = net->table, deep = net->deep;
  using Lent = std::tuple<at::Tensor, at::Tensor>;
  const auto first = graph.add(
      "table",
      Part(table.ptr(),
           [table](const at::Tensor& x) mutable { return Lent(torch::tanh(table(x)), table->weight.clone()); }),
      {graph.input()});
  const auto shallow = graph.add("shallow", [](const Lent& both) { return std::get<0>(both); }, {first});
  const auto weight = graph.add("weight", [](const Lent& both) { return std::get<1>(both); }, {first});
  const auto hidden = graph.add(
      "deep", Part(deep.ptr(), [deep](const at::Tensor& x) mutable { return torch::tanh(deep(x)); }), {shallow});
  graph.add("head", [](const at::Tensor& x, const at::Tensor& w) { return torch::matmul(x, w).slice(1, 0, 3); },
            {hidden, weight});
  return graph;
}

const std::vector<std::string> kLayers = {"down", "split", "left", "deep", "join", "late", "sum"};
// By layer, the layers that it reads.
const std::vector<std::vector<size_t>> kReads = {{}, {0}, {1}, {2}, {3, 0}, {}, {4, 5, 1}};

// Each way to put the layers into as many stages such that nothing is read that only a later stage has.
std::vector<std::vector<size_t>> all_cuts(size_t stages) {
  std::vector<std::vector<size_t>> found;
  std::vector<size_t> stage_of(kLayers.size());
  const std::function<void(size_t)> choose = [&](size_t layer) {
    if (layer == kLayers.size()) {
      for (size_t stage = 0; stage < stages; ++stage) {
        if (std::ranges::find(stage_of, stage) == stage_of.end()) return;
      }
      found.push_back(stage_of);
      return;
    }
    for (stage_of[layer] = 0; stage_of[layer] < stages; ++stage_of[layer]) {
      if (std::ranges::all_of(kReads[layer], [&](size_t read) { return stage_of[read] <= stage_of[layer]; }))
        choose(layer + 1);
    }
  };
  choose(0);
  return found;
}

std::vector<std::vector<std::string>> names_by_stage(const std::vector<size_t>& stage_of, size_t stages) {
  std::vector<std::vector<std::string>> found(stages);
  for (size_t layer = 0; layer < stage_of.size(); ++layer) found[stage_of[layer]].push_back(kLayers[layer]);
  return found;
}

// The stages one after the other, as ranks would have them run: what crosses a border is another memory there.
at::Tensor through(const GraphCut& made, const at::Tensor& x) {
  std::vector<Value> on_edge(made.edges.size());
  std::vector<Value> outputs;
  for (size_t stage = 0; stage < made.parts.size(); ++stage) {
    std::vector<Value> inputs;
    std::vector<size_t> outgoing;
    for (size_t edge = 0; edge < made.edges.size(); ++edge) {
      if (made.edges[edge].to == static_cast<int>(stage)) inputs.push_back(on_edge[edge]);
      if (made.edges[edge].from == static_cast<int>(stage)) outgoing.push_back(edge);
    }
    if (stage == 0) inputs = {Value{x}};
    outputs = run_part(made.parts[stage], inputs, outgoing.size());
    for (size_t i = 0; i < outgoing.size(); ++i)
      on_edge[outgoing[i]] = with_tensors(outputs.at(i), [](const at::Tensor& one) { return one.clone(); });
  }
  return *outputs.at(0).tensor();
}

void says(const std::string& found, const std::string& expected) { require(found == expected, found); }

State trained_plainly(const Plain& model, const Pairs& batches) {
  Plain net = model;
  auto optimizer = sgd(net->parameters());
  for (const auto& [x, y] : batches) {
    optimizer->zero_grad();
    mse(net->forward(x), y).backward();
    optimizer->step();
  }
  return state_of(*net);
}

}  // namespace

TEST(CppGraph, every_cut_is_the_model) {
  on_ranks(1, [](const auto&) {
    Plain plain;
    const Graph graph = graph_of(plain);
    const at::Tensor x = torch::randn({5, 6}, at::kDouble), expected = plain->forward(x);
    require(torch::equal(*graph.run(Value{x}).tensor(), expected), "the graph itself");
    const auto gradients = torch::autograd::grad({expected.sum()}, plain->parameters());
    int cuts = 0;
    for (size_t stages = 1; stages <= kLayers.size(); ++stages) {
      for (const auto& stage_of : all_cuts(stages)) {
        const std::string which = fmt::format("cut {} into {}", ++cuts, stages);
        const GraphCut made = cut(graph, names_by_stage(stage_of, stages));
        const at::Tensor found = through(made, x);
        require(torch::equal(found, expected), which);
        const auto theirs = torch::autograd::grad({found.sum()}, plain->parameters());
        for (size_t i = 0; i < theirs.size(); ++i)
          require((theirs[i] - gradients[i]).abs().max().template item<double>() < 1e-12, which + ": gradients");
        size_t parameters = 0;
        for (const Part& part : made.parts) parameters += parameters_of(part).size();
        require(parameters == plain->parameters().size(), which + ": each parameter in one stage");
      }
    }
    require(cuts == 224, fmt::format("{} cuts", cuts));
  });
}

TEST(CppGraph, stages_train_like_one_process) {
  on_ranks(2, [](const auto& ranks) {
    const Pairs batches = data(4, 8, 5);
    const State expected = trained_plainly(Plain(), batches);
    int cell = 0;
    for (const char* schedule : {"gpipe", "1f1b", "seq"}) {
      for (const std::vector<std::vector<std::string>>& stages :
           {std::vector<std::vector<std::string>>{{"down", "late"}, {"split", "left", "deep", "join", "sum"}},
            {{"down"}, {"split", "left", "deep"}, {"join", "late", "sum"}},
            {{"down"}, {"split"}, {"left"}, {"deep", "join", "late"}, {"sum"}}}) {
        const GraphCut made = cut(graph_of(Plain()), stages);
        std::vector<int> placement;
        for (size_t stage = 0; stage < stages.size(); ++stage) placement.push_back(stage == 1 ? 1 : 0);
        Pipeline pipe(ranks, made.parts, mse, sgd,
                      {.schedule = schedule, .micro_batches = 4, .placement = placement, .edges = made.edges});
        pipe.run(batches);
        const double off = furthest(expected, pipe.state());
        require(off < 1e-12, fmt::format("{} of {} stages: off by {}", schedule, stages.size(), off));
        ++cell;
      }
    }
    require(cell == 9, "all of them");
    const GraphCut made = cut(graph_of(Plain()), {{"down", "split"}, {"left", "deep", "join", "late", "sum"}});
    Pipeline recomputing(ranks, made.parts, mse, sgd,
                         {.schedule = "1f1b", .micro_batches = 4, .recompute = true, .edges = made.edges});
    recomputing.run(batches);
    require(furthest(expected, recomputing.state()) < 1e-12, "with recomputation");
    const GraphCut split = cut(graph_of(Plain()), {{"down", "split"}, {"left", "deep", "join", "late", "sum"}});
    Pipeline splitting(ranks, split.parts, mse, sgd, {.schedule = "zb1", .micro_batches = 4, .edges = split.edges});
    splitting.run(batches);
    require(furthest(expected, splitting.state()) < 1e-12, "with backwards in two parts");
  });
}

TEST(CppGraph, a_weight_that_is_lent_to_a_later_stage_is_trained_as_in_one_process) {
  on_ranks(2, [](const auto& ranks) {
    const Pairs batches = data(4, 8, 5);
    Tied plain;
    auto optimizer = sgd(plain->parameters());
    for (const auto& [x, y] : batches) {
      optimizer->zero_grad();
      mse(plain->forward(x), y).backward();
      optimizer->step();
    }
    const State expected = state_of(*plain);
    for (const char* schedule : {"gpipe", "1f1b", "seq"}) {
      for (int stages : {2, 3}) {
        const GraphCut made = cut(graph_of(Tied()), stages);
        Pipeline pipe(ranks, made.parts, mse, sgd, {.schedule = schedule, .micro_batches = 4, .edges = made.edges});
        pipe.run(batches);
        const double off = furthest(expected, pipe.state());
        require(off < 1e-12, fmt::format("{} of {} stages: off by {}", schedule, stages, off));
      }
    }
  });
}

TEST(CppGraph, several_inputs_are_the_items_of_x) {
  on_ranks(2, [](const auto& ranks) {
    const auto model = [] {
      torch::manual_seed(2);
      std::pair<Linear, Linear> made{Linear(6, 3), Linear(2, 3)};
      made.first->to(at::kDouble);
      made.second->to(at::kDouble);
      return made;
    };
    auto [first, second] = model();
    Graph graph;
    const auto image = graph.input("image"), depth = graph.input("depth");
    const auto one = graph.add("one", first, {image});
    graph.add("two",
              Part(second.ptr(),
                   [second = second](const at::Tensor& a, const at::Tensor& b) mutable { return a * second(b); }),
              {one, depth});
    const GraphCut made = cut(graph, 2);
    torch::manual_seed(4);
    const at::Tensor x = torch::randn({8, 6}, at::kDouble), z = torch::randn({8, 2}, at::kDouble),
                     y = torch::randn({8, 3}, at::kDouble);
    Pipeline pipe(ranks, made.parts, mse, sgd, {.schedule = "1f1b", .micro_batches = 4, .edges = made.edges});
    pipe.run(std::vector<Batch>{Batch(Value{Value::Tuple{{Value{x}, Value{z}}}}, Value{y})});
    auto [plain_first, plain_second] = model();
    auto parameters = plain_first->parameters();
    for (const at::Tensor& one_more : plain_second->parameters()) parameters.push_back(one_more);
    auto optimizer = sgd(parameters);
    mse(plain_first(x) * plain_second(z), y).backward();
    optimizer->step();
    State expected;
    for (const auto& [name, tensor] : state_of(*plain_first)) expected["one." + name] = tensor;
    for (const auto& [name, tensor] : state_of(*plain_second)) expected["two." + name] = tensor;
    require(furthest(expected, pipe.state()) < 1e-12, "as in one process");
  });
}

TEST(CppGraph, a_module_of_two_layers_is_there_once) {
  on_ranks(2, [](const auto& ranks) {
    torch::manual_seed(0);
    Linear twice(6, 6), last(6, 3);
    Graph graph;
    const auto first = graph.add("first", twice, {graph.input()});
    graph.add("last", last, {graph.add("second", twice, {first})});
    const GraphCut made = cut(graph, {{"first", "second"}, {"last"}});
    require(parameters_of(made.parts[0]).size() == 2, "a weight and a bias");
    require(refusal([&] {
              Pipeline(ranks, cut(graph, {{"first"}, {"second", "last"}}).parts, mse, sgd);
            }).starts_with("first.weight of stage 0 and second.weight of stage 1 are one parameter"),
            "and of two stages it is refused");
  });
}

// A layer that is used twice and notes a loss at each forward, in either way in which one may keep it.
TEST(CppGraph, losses_of_layers_are_trained_on_as_in_one_process) {
  on_ranks(2, [](const auto& ranks) {
    const auto layers = [] {
      torch::manual_seed(0);
      std::pair<Linear, Linear> made{Linear(6, 6), Linear(6, 3)};
      made.first->to(at::kDouble);
      made.second->to(at::kDouble);
      return made;
    };
    const auto penalty = [](const at::Tensor& out) { return 0.1 * out.pow(2).mean(); };
    const Pairs batches = data(3, 8, 4);
    auto [twice, last] = layers();
    std::vector<at::Tensor> parameters = twice->parameters();
    for (const at::Tensor& one : last->parameters()) parameters.push_back(one);
    auto optimizer = sgd(parameters);
    for (const auto& [x, y] : batches) {
      optimizer->zero_grad();
      const at::Tensor a = twice(x), b = twice(a);
      (mse(last(b), y) + penalty(a) + penalty(b)).backward();
      optimizer->step();
    }
    for (const bool assigned : {false, true}) {
      auto [ours, end] = layers();
      auto noted = std::make_shared<std::vector<at::Tensor>>();
      Part with_loss(ours.ptr(), [ours = ours, noted, assigned, penalty](const at::Tensor& x) mutable {
        at::Tensor out = ours(x);
        if (assigned) noted->clear();
        noted->push_back(penalty(out));
        return out;
      });
      with_loss.auxiliary_losses = [noted] { return std::exchange(*noted, {}); };
      Graph graph;
      const auto first = graph.add("first", with_loss, {graph.input()});
      graph.add("last", end, {graph.add("second", with_loss, {first})});
      graph.run(Value{batches[0].first});  // leaves nothing that is trained on
      const GraphCut made = cut(graph, {{"first", "second"}, {"last"}});
      require(!made.parts[1].auxiliary_losses, "none of the other stage");
      Pipeline pipe(ranks, made.parts, mse, sgd, {.schedule = "1f1b", .micro_batches = 4, .edges = made.edges});
      pipe.run(batches);
      const State found = pipe.state();
      require((found.at("first.weight") - twice->weight).abs().max().template item<double>() < 1e-12, "used twice");
      require((found.at("last.weight") - last->weight).abs().max().template item<double>() < 1e-12, "the last");
    }
  });
}

TEST(CppGraph, what_a_layer_changes_in_place_nobody_else_may_read) {
  on_ranks(1, [](const auto&) {
    const auto doubled = [](at::Tensor x) { return x.mul_(2); };
    const auto same = [](const at::Tensor& x) { return x + 0; };
    const auto view = [](const at::Tensor& x) { return x.view({-1}); };
    const auto sum = [](const at::Tensor& a, const at::Tensor& b) { return a.sum() + b.sum(); };
    const Value x{torch::ones({2, 2})};
    {
      Graph graph;  // the skip is read behind the change
      const auto first = graph.add("first", same, {graph.input()});
      graph.add("sum", sum, {graph.add("double", doubled, {first}), first});
      const std::string expected =
          "layer \"double\" changes \"first\" in place, which \"sum\" reads, too: expected a layer that leaves it as "
          "it is";
      says(refusal([&] { graph.run(x); }), expected);
      says(refusal([&] { through(cut(graph, 3), *x.tensor()); }), expected);
    }
    {
      Graph graph;  // likewise, by a view
      const auto first = graph.add("first", same, {graph.input()});
      graph.add("sum", sum, {graph.add("double", doubled, {graph.add("view", view, {first})}), first});
      require(refusal([&] { graph.run(x); }).find("changes \"first\" in place") != std::string::npos, "a view");
    }
    {
      Graph graph;  // also by its last reader: in another cut it would not be the last
      const auto first = graph.add("first", same, {graph.input()});
      const auto other = graph.add("other", same, {first});
      graph.add("sum", sum, {other, graph.add("double", doubled, {first})});
      const std::string expected =
          "layer \"double\" changes \"first\" in place, which \"other\" reads, too: expected a layer that leaves it as "
          "it is";
      says(refusal([&] { graph.run(x); }), expected);
      for (const auto& stages : {std::vector<std::vector<std::string>>{{"first"}, {"other"}, {"double"}, {"sum"}},
                                 {{"first", "double"}, {"other", "sum"}}})
        says(refusal([&] { through(cut(graph, stages), *x.tensor()); }), expected);
    }
    {
      Graph graph;  // nobody reads it again
      graph.add("double", doubled, {graph.add("first", same, {graph.input()})});
      require(torch::equal(*graph.run(x).tensor(), at::full({2, 2}, 2.0)), "twice one");
    }
  });
}

TEST(CppGraph, stages_without_their_edges_are_refused) {
  on_ranks(2, [](const auto& ranks) {
    const GraphCut made = cut(graph_of(Plain()), {{"down"}, {"split", "left", "deep"}, {"join", "late", "sum"}});
    says(refusal([&] { Pipeline(ranks, made.parts, mse, sgd, {.placement = {0, 1, 0}}); }),
         "stage 2 of a graph takes \"image\", which no edge brings: expected the edges that cut() gave");
    auto turned = made.edges;
    std::ranges::reverse(turned);
    says(refusal([&] { Pipeline(ranks, made.parts, mse, sgd, {.placement = {0, 1, 0}, .edges = turned}); }),
         "edges of a graph's stages: expected those that cut() gave, in their order");
    Graph chain;
    const auto same = [](const at::Tensor& x) { return x; };
    chain.add("c", Linear(6, 3), {chain.add("b", same, {chain.add("a", same, {chain.input()})})});
    const GraphCut of_chain = cut(chain, 3);
    says(refusal([&] {
           Pipeline(ranks, of_chain.parts, mse, sgd, {.placement = {0, 1, 0}, .edges = {{0, 1}, {0, 2}, {1, 2}}});
         }),
         "edge 0 -> 2: stage 2 of a graph takes nothing that stage 0 gives: expected the edges that cut() gave");
  });
}

TEST(CppGraph, buffers_of_two_stages_are_refused) {
  on_ranks(2, [](const auto& ranks) {
    torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(6).affine(false));
    Graph graph;
    const auto first = graph.add("first", norm, {graph.input()});
    const auto middle = graph.add("middle", Linear(6, 6), {first});
    graph.add("last", Linear(6, 3), {graph.add("second", norm, {middle})});
    says(refusal([&] { Pipeline(ranks, cut(graph, {{"first", "middle"}, {"second", "last"}}).parts, mse, sgd); }),
         "first.running_mean of stage 0 and second.running_mean of stage 1 are one buffer; each stage would write its "
         "own copy: expected its layers in one stage");
    require(!cut(graph, {{"first", "middle", "second"}, {"last"}}).parts.empty(), "of one stage it may be");
  });
}

// The function knows a weight that its module has not.
TEST(CppGraph, a_weight_that_a_function_hides_is_refused_before_a_step) {
  on_ranks(2, [](const auto& ranks) {
    const auto said_by = [&](const Graph& graph) {
      const GraphCut made = cut(graph, 2);
      Pipeline pipe(ranks, made.parts, mse, sgd, {.schedule = "1f1b", .micro_batches = 4, .edges = made.edges});
      const State before = pipe.state();
      const std::string said = refusal<std::exception>([&] { pipe.run(data(1, 8)); });
      require(furthest(before, pipe.state()) == 0, "nothing was trained");
      return said;
    };
    torch::manual_seed(0);
    Linear table(6, 3), deep(3, 3);
    table->to(at::kDouble), deep->to(at::kDouble);
    Graph tied;
    const auto first = tied.add("table", table, {tied.input()});
    tied.add("head",
             Part(deep.ptr(),
                  [deep, table](const at::Tensor& x) mutable {
                    return torch::matmul(deep(x), table->weight).slice(1, 0, 3);
                  }),
             {first});
    const std::string of_other = said_by(tied);
    require(of_other.find("stage 1 (head) computes with table.weight of stage 0, past its module") != std::string::npos,
            of_other);
    Graph untrained;
    const auto known = untrained.add("first", table, {untrained.input()});
    untrained.add("last", [deep](const at::Tensor& x) mutable { return deep(x); }, {known});
    const std::string of_none = said_by(untrained);
    require(of_none.find("stage 1 (last) computes with a weight of ") != std::string::npos &&
                of_none.find("in no stage's module") != std::string::npos,
            of_none);
    Graph fine;  // leaves of a forward's own are others each time
    const auto begun = fine.add("first", table, {fine.input()});
    fine.add(
        "last",
        Part(deep.ptr(),
             [deep](const at::Tensor& x) mutable { return deep(x) + at::ones({3}, at::kDouble).requires_grad_(); }),
        {begun});
    const GraphCut made = cut(fine, 2);
    Pipeline(ranks, made.parts, mse, sgd, {.schedule = "1f1b", .micro_batches = 4, .edges = made.edges})
        .run(data(2, 8));
  });
}

TEST(CppGraph, who_cannot_compute_is_named) {
  on_ranks(1, [](const auto&) {
    Graph graph;
    const auto first = graph.add("first", Linear(6, 4), {graph.input()});
    graph.add("wrong", Linear(5, 3), {first});
    const std::string of_torch = refusal<std::exception>([&] { graph.run(Value{torch::ones({2, 6})}); });
    require(of_torch.substr(0, of_torch.find('\n')).find("in layer \"wrong\"") != std::string::npos, of_torch);
    Graph another;
    const auto one = another.add("one", Linear(6, 4), {another.input()});
    another.add("join", Join(), {one});
    const std::string of_ours = refusal([&] { another.run(Value{torch::ones({2, 6})}); });
    require(of_ours.starts_with("layer \"join\": "), of_ours);
  });
}

// What else a pipeline does, with branches: replicas, saves, evaluation, values that are no tensors.
TEST(CppGraph, stages_of_a_graph_are_as_good_as_others) {
  on_ranks(4, [](const auto& ranks) {
    const Pairs batches = data(4, 8, 8);
    const std::vector<std::vector<std::string>> stages = {{"down"}, {"split", "left", "deep"}, {"join", "late", "sum"}};
    const auto made = [&](int replicas) {
      const GraphCut parts = cut(graph_of(Plain()), stages);
      return Pipeline(
          ranks, parts.parts, mse, sgd,
          {.schedule = "1f1b", .micro_batches = 4, .replicas = replicas, .placement = {0, 1, 0}, .edges = parts.edges});
    };
    Pipeline pipe = made(2);
    Pairs mine;
    const int64_t begin = ranks->rank() < 2 ? 0 : 4;
    for (const auto& [x, y] : batches) mine.emplace_back(x.narrow(0, begin, 4), y.narrow(0, begin, 4));
    pipe.run(mine);
    const double off = furthest(trained_plainly(Plain(), batches), pipe.state());
    require(off < 1e-12, fmt::format("replicas: off by {}", off));
    const auto folder = std::filesystem::temp_directory_path() / fmt::format("ddip-graph-{}", ::getppid());
    pipe.save(folder);
    Pipeline again = made(2);
    again.load(folder);
    require(furthest(pipe.state(), again.state()) == 0, "loaded");
    ranks->barrier();
    if (ranks->rank() == 0) std::filesystem::remove_all(folder);
    Plain plain;
    trained_plainly(plain, batches);
    double expected = 0;
    {
      const at::NoGradGuard quiet;
      for (const auto& [x, y] : batches) expected += mse(plain->forward(x), y).template item<double>() / 4;
    }
    const double found = again.evaluate(mine).loss;
    if (ranks->rank() == 0) require(std::abs(found - expected) < 1e-12, fmt::format("{} for {}", found, expected));
  });
}

TEST(CppGraph, values_that_are_no_tensors_go_along) {
  on_ranks(2, [](const auto& ranks) {
    using Mixed = std::tuple<at::Tensor, std::optional<at::Tensor>, int64_t>;
    torch::manual_seed(0);
    Linear first(6, 3), last(3, 3);
    first->to(at::kDouble), last->to(at::kDouble);
    Graph graph;
    const auto mixed = graph.add(
        "mixed", Part(first.ptr(), [first](const at::Tensor& x) mutable { return Mixed(first(x), std::nullopt, 2); }),
        {graph.input()});
    const auto middle =
        graph.add("middle", Part(last.ptr(), [last](const Mixed& m) mutable { return last(std::get<0>(m)); }), {mixed});
    graph.add("end",
              [](const at::Tensor& x, const Mixed& m) {
                return std::get<1>(m) ? x * 100 : x * std::get<2>(m) + std::get<0>(m);
              },
              {middle, mixed});
    const GraphCut made = cut(graph, 3);
    const Pairs batches = data(2, 8);
    torch::manual_seed(0);
    Linear plain_first(6, 3), plain_last(3, 3);
    plain_first->to(at::kDouble), plain_last->to(at::kDouble);
    std::vector<at::Tensor> parameters = plain_first->parameters();
    for (const at::Tensor& one : plain_last->parameters()) parameters.push_back(one);
    auto optimizer = sgd(parameters);
    for (const auto& [x, y] : batches) {
      optimizer->zero_grad();
      const at::Tensor hidden = plain_first(x);
      mse(plain_last(hidden) * 2 + hidden, y).backward();
      optimizer->step();
    }
    Pipeline pipe(ranks, made.parts, mse, sgd,
                  {.schedule = "1f1b", .micro_batches = 4, .placement = {0, 1, 0}, .edges = made.edges});
    pipe.run(batches);
    const State found = pipe.state();
    require((found.at("mixed.weight") - plain_first->weight).abs().max().template item<double>() < 1e-12, "first");
    require((found.at("middle.weight") - plain_last->weight).abs().max().template item<double>() < 1e-12, "last");
  });
}

TEST(CppGraph, what_makes_no_sense_is_refused_in_one_line) {
  on_ranks(1, [](const auto&) {
    const auto same = [](const at::Tensor& x) { return x; };
    const Graph graph = graph_of(Plain());
    says(refusal([&] { cut(graph, {{"down", "spilt"}}); }),
         "a stage has \"spilt\", which is no layer of the graph; did you mean split?");
    says(refusal([&] { cut(graph, {{"image", "down"}}); }), "a stage has \"image\", which is no layer of the graph");
    says(refusal([&] { cut(graph, {{"down", "down"}}); }), "layer \"down\" is in stage 0 twice");
    says(refusal([&] { cut(graph, {kLayers, {}}); }), "stage 1 has no layer: expected some");
    says(refusal([&] { cut(graph, {kLayers, {"deep"}}); }), "layer \"deep\" is in stage 0 and in stage 1");
    says(refusal([&] { cut(graph, {{"down", "split", "left"}, {"join", "late", "sum"}}); }),
         "layer \"deep\" is in no stage");
    says(refusal([&] { cut(graph, {{"down", "join"}, {"split", "left", "deep", "late", "sum"}}); }),
         "layer \"join\" of stage 0 reads \"deep\" of stage 1: expected it in an earlier stage");
    says(refusal([&] { cut(graph, 8); }), "8 stages of a graph with 7 layers: expected at most 7");
    Graph other;
    says(refusal([&] { other.result(); }), "a graph has no layer: expected some");
    says(refusal([&] { other.add("a", same, {}); }), "a graph's layer \"a\" reads nothing: expected something");
    const auto x = other.input();
    const auto a = other.add("a", same, {x});
    says(refusal([&] { other.add("a", same, {x}); }), "a graph has \"a\" twice: expected each name once");
    says(refusal([&] { other.add("b.c", same, {x}); }), "a graph's layer \"b.c\": expected a name without dots");
    says(refusal([&] { other.add("", same, {x}); }), "a graph's layer \"\": expected a name");
    Graph another;
    another.add("a", same, {another.input()});
    says(refusal([&] { another.add("b", same, {a}); }), "a graph's layer \"b\" reads what another graph has");
    Graph copy = other;
    const auto of_copy = copy.add("b", same, {a});
    says(refusal([&] { Graph(other).add("c", same, {of_copy}); }),
         "a graph's layer \"c\" reads what another graph has");
    Graph grown = other;
    grown.add("d", same, {x});
    says(refusal([&] { grown.add("c", same, {of_copy}); }), "a graph's layer \"c\" reads what another graph has");
    says(refusal([&] { Graph().run(Value{at::ones({1})}); }), "a graph has no layer: expected some");
    other.add("b", same, {x});
    says(refusal([&] { cut(other, 2); }),
         "nothing reads \"a\" and \"b\" of a graph: expected one result, that of the last layer");
  });
}

// What tests/test_pipeline_cpp.py computes again.
TEST(CppGraph, ledgers_for_replay) {
  const char* folder = std::getenv("DDIP_TEST_LEDGERS");
  if (!folder) GTEST_SKIP() << "tests/test_pipeline_cpp.py asks for them";
  on_ranks(2, [&](const auto& ranks) {
    const std::filesystem::path here(folder);
    const auto one = [&](const char* schedule, const char* policy, const std::string& name, auto net,
                         const std::vector<std::vector<std::string>>& stages, const std::vector<int>& placement) {
      net->to(at::kFloat);
      const GraphCut made = cut(graph_of(net), stages);
      Pipeline pipe(ranks, made.parts, mse, sgd,
                    {.schedule = schedule,
                     .staleness = policy,
                     .micro_batches = 4,
                     .placement = placement,
                     .edges = made.edges,
                     .ledger = here / (name + ".jsonl")});
      pipe.run(data(4, 8, 5, at::kFloat));
    };
    const std::vector<std::vector<std::string>> two = {{"down", "late"}, {"split", "left", "deep", "join", "sum"}},
                                                three = {{"down"}, {"split", "left", "deep"}, {"join", "late", "sum"}};
    one("1f1b", "none", "graph_0", Plain(), two, {0, 1});
    one("async_1f1b", "stash", "graph_1", Plain(), two, {0, 1});
    one("async_1f1b", "msnag", "graph_2", Plain(), three, {0, 1, 0});
    one("async_1f1b", "none", "graph_3", Plain(), three, {0, 1, 0});
    // Stages that have nothing to train: the last one, one in the middle.
    one("async_1f1b", "msnag", "graph_4", Plain(), {{"down"}, {"split", "left", "deep", "join", "late"}, {"sum"}},
        {0, 1, 0});
    one("1f1b", "none", "graph_5", Plain(), {{"down", "split"}, {"left"}, {"deep", "join", "late", "sum"}}, {0, 1, 0});
    for (const char* policy : {"stash", "msnag", "none"})
      one("async_1f1b", policy, fmt::format("tied_{}", policy), Tied(),
          {{"table", "shallow", "weight"}, {"deep", "head"}}, {0, 1});
  });
}

}  // namespace ddip::pipeline
