// Pipelines of C++ on real ranks, each beside one process of plain libtorch.
#include "ddip/pipeline/pipeline.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "ddip/pipeline/testing/processes.h"

namespace ddip::pipeline {
namespace {

using Pairs = std::vector<std::pair<at::Tensor, at::Tensor>>;
using State = NamedTensors;

torch::nn::Sequential mlp(int hidden = 1, at::ScalarType type = at::kDouble) {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int layer = 0; layer < hidden; ++layer) {
    model->push_back(torch::nn::Linear(layer == 0 ? 6 : 8, 8));
    model->push_back(torch::nn::Tanh());
  }
  model->push_back(torch::nn::Linear(8, 3));
  model->to(type);
  return model;
}

// Some of its layers, as a model of their own.
torch::nn::Sequential layers(torch::nn::Sequential model, int begin, int end) {
  torch::nn::Sequential found;
  for (auto layer = model->begin() + begin; layer != model->begin() + end; ++layer) found->push_back(*layer);
  return found;
}

Pairs data(int batches, int64_t size, int64_t last = 0, at::ScalarType type = at::kDouble) {
  torch::manual_seed(7);
  Pairs found;
  for (int batch = 0; batch < batches; ++batch) {
    int64_t samples = last > 0 && batch == batches - 1 ? last : size;
    at::Tensor x = torch::randn({samples, 6}, type);  // before y, also in a compiler that begins with the last argument
    found.emplace_back(x, torch::randn({samples, 3}, type));
  }
  return found;
}

at::Tensor mse(const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); }

std::unique_ptr<torch::optim::Optimizer> sgd(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
}

State state_of(const torch::nn::Module& module) {
  State found;
  for (const auto& item : module.named_parameters()) found[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) found[item.key()] = item.value().detach().clone();
  return found;
}

double furthest(const State& a, const State& b) {
  require(a.size() == b.size(), "as many tensors");
  double most = 0;
  for (const auto& [name, tensor] : a) {
    require(b.contains(name), name + " is there");
    most = std::max(most, (tensor - b.at(name)).abs().max().item<double>());
  }
  return most;
}

// Plain libtorch: one step for each `accumulate` batches, the mean over all their samples.
State in_one_process(torch::nn::Sequential model, const Pairs& batches, const MakeOptimizer& make = sgd,
                     size_t accumulate = 1, const RateFactor& factor = {}) {
  auto optimizer = make(model->parameters());
  std::vector<double> rates;
  for (auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  int64_t step = 0;
  for (size_t begin = 0; begin < batches.size(); begin += accumulate, ++step) {
    std::vector<at::Tensor> xs, ys;
    for (size_t i = begin; i < std::min(begin + accumulate, batches.size()); ++i) {
      xs.push_back(batches[i].first);
      ys.push_back(batches[i].second);
    }
    if (factor) {
      for (size_t i = 0; i < rates.size(); ++i) optimizer->param_groups()[i].options().set_lr(rates[i] * factor(step));
    }
    optimizer->zero_grad();
    mse(model->forward(torch::cat(xs)), torch::cat(ys)).backward();
    optimizer->step();
  }
  return state_of(*model);
}

}  // namespace

TEST(CppPipeline, synchronous_schedules_train_like_one_process) {
  for (const char* schedule : {"seq", "gpipe", "1f1b", "zb1"}) {
    for (int64_t last : {12, 7, 2}) {
      on_ranks(2, [&](const auto& ranks) {
        Pairs batches = data(5, 12, last);
        Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.schedule = schedule, .micro_batches = 4});
        Report report = pipe.run(batches);
        require(report.losses.size() == 5 && report.losses.back() > 0, "a loss for each batch");
        State expected = in_one_process(mlp(), batches);
        require(furthest(expected, state_of(*mlp())) > 1e-3, "the training went somewhere");
        double off = furthest(expected, pipe.state());
        require(off < 1e-13, fmt::format("{} with a last batch of {} is off by {}", schedule, last, off));
      });
    }
  }
}

TEST(CppPipeline, stages_that_share_ranks_train_like_one_process) {
  for (const char* schedule : {"interleaved", "zbv", "1f1b"}) {
    on_ranks(2, [&](const auto& ranks) {
      Pairs batches = data(4, 16);
      std::vector<int> placement = {0, 1, 0, 1};
      if (std::string(schedule) == "zbv") placement = {0, 1, 1, 0};
      Pipeline pipe(ranks, cut(mlp(3), 4), mse, sgd,
                    {.schedule = schedule, .micro_batches = 4, .placement = placement});
      pipe.run(batches);
      require(pipe.stages().size() == 2, "two stages here");
      double off = furthest(in_one_process(mlp(3), batches), pipe.state());
      require(off < 1e-13, fmt::format("{} is off by {}", schedule, off));
    });
  }
}

TEST(CppPipeline, optimizers_groups_rates_and_accumulation_are_those_of_one_process) {
  const std::map<std::string, MakeOptimizer> kinds = {
      {"nesterov and decay",
       [](auto parameters) {
         return std::make_unique<torch::optim::SGD>(
             parameters, torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01));
       }},
      {"adam", [](auto parameters) { return std::make_unique<torch::optim::Adam>(parameters, 0.01); }},
      {"adamw",
       [](auto parameters) {
         return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
       }},
      {"rmsprop", [](auto parameters) { return std::make_unique<torch::optim::RMSprop>(parameters, 0.01); }},
      {"biases with a rate of their own",
       [](auto parameters) {
         std::vector<at::Tensor> matrices, vectors;
         for (const at::Tensor& one : parameters) (one.dim() > 1 ? matrices : vectors).push_back(one);
         std::vector<torch::optim::OptimizerParamGroup> groups;
         groups.emplace_back(matrices);
         groups.emplace_back(vectors,
                             std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.2).momentum(0.5)));
         return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.05).momentum(0.9));
       }},
  };
  const RateFactor fading = [](int64_t step) { return 1.0 / (1.0 + static_cast<double>(step)); };
  for (const auto& [name, make] : kinds) {
    on_ranks(2, [&](const auto& ranks) {
      Pairs batches = data(7, 12);
      Pipeline pipe(ranks, cut(mlp(), 2), mse, make,
                    {.schedule = "1f1b", .micro_batches = 4, .accumulate = 2, .scheduler = fading});
      pipe.run(Pairs(batches.begin(), batches.begin() + 4));
      pipe.run(Pairs(batches.begin() + 4, batches.end()));
      State expected = in_one_process(mlp(), batches, make, 2, fading);
      State unfaded = in_one_process(mlp(), batches, make, 2);
      require(furthest(expected, unfaded) > 1e-4, "the rates matter");
      double off = furthest(expected, pipe.state());
      require(off < 1e-11, fmt::format("{} is off by {}", name, off));
    });
  }
}

TEST(CppPipeline, clips_each_stages_gradient) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(4, 12);
    const double most = 0.02;
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.schedule = "gpipe", .micro_batches = 4, .clip = most});
    pipe.run(batches);
    auto model = mlp();
    auto optimizer = sgd(model->parameters());
    for (const auto& [x, y] : batches) {
      optimizer->zero_grad();
      mse(model->forward(x), y).backward();
      for (int stage : {0, 2}) torch::nn::utils::clip_grad_norm_(model[stage]->parameters(), most);
      optimizer->step();
    }
    require(furthest(state_of(*model), pipe.state()) < 1e-12, "clipped alike");
    require(furthest(state_of(*model), in_one_process(mlp(), batches)) > 1e-3, "and it clips");
  });
}

// --- asynchronous: beside a loop over versions of the weights, written out

namespace {

enum class Kind { none, stash, predicted };

// Two stages, one micro-batch to a step: stage 0's forward k reads the weights after k-1 steps, its backward comes
// after k; stage 1 is never late. `kind`: what stage 0 computes with.
State two_stages_by_hand(const Pairs& micro_batches, Kind kind, const MakeOptimizer& make, bool adam) {
  auto model = mlp();
  torch::nn::Sequential front = layers(model, 0, 2), back = layers(model, 2, 3);
  auto first = make(front->parameters()), second = make(back->parameters());
  struct Flight {
    std::vector<at::Tensor> weights;
  };
  auto copy = [&] {
    std::vector<at::Tensor> found;
    for (const at::Tensor& one : front->parameters()) found.push_back(one.detach().clone());
    return found;
  };
  auto load = [&](const std::vector<at::Tensor>& weights) {
    at::NoGradGuard quiet;
    for (size_t i = 0; i < weights.size(); ++i) front->parameters()[i].copy_(weights[i]);
  };
  int64_t steps = 0;
  // What a step without a new gradient would make of the weights.
  auto predict = [&] {
    std::vector<at::Tensor> found = copy();
    if (steps == 0) return found;
    for (size_t i = 0; i < found.size(); ++i) {
      const auto& kept = *first->state().at(front->parameters()[i].unsafeGetTensorImpl());
      if (adam) {
        const auto& state = static_cast<const torch::optim::AdamParamState&>(kept);
        auto t = static_cast<double>(steps);
        at::Tensor root = (state.exp_avg_sq() / (1 - std::pow(0.999, t))).sqrt() + 1e-8;
        found[i] -= 0.01 / (1 - std::pow(0.9, t + 1)) * 0.9 * state.exp_avg() / root;
      } else {
        found[i] -= 0.05 * 0.9 * static_cast<const torch::optim::SGDParamState&>(kept).momentum_buffer();
      }
    }
    return found;
  };
  // Forward k+1 runs before backward k.
  std::vector<Flight> flights;
  auto forward = [&](bool stale) { flights.push_back({stale && kind == Kind::predicted ? predict() : copy()}); };
  const size_t count = micro_batches.size();
  forward(count > 1 ? true : false);
  for (size_t k = 0; k < count; ++k) {
    if (k + 1 < count) forward(true);
    std::vector<at::Tensor> newest = copy();
    load(flights[k].weights);
    const auto& [x, y] = micro_batches[k];
    first->zero_grad();
    second->zero_grad();
    at::Tensor hidden = front->forward(x);
    mse(back->forward(hidden), y).backward();
    load(newest);
    first->step();
    second->step();
    ++steps;
  }
  return state_of(*model);
}

}  // namespace

TEST(CppPipeline, asynchronous_runs_are_what_a_loop_over_versions_gives) {
  const MakeOptimizer adam = [](auto parameters) { return std::make_unique<torch::optim::Adam>(parameters, 0.01); };
  for (const auto& [staleness, kind] : std::vector<std::pair<std::string, Kind>>{
           {"stash", Kind::stash}, {"msnag+stash", Kind::predicted}, {"adam+stash", Kind::predicted}}) {
    on_ranks(2, [&](const auto& ranks) {
      Pairs batches = data(5, 12), micro_batches;
      for (const auto& [x, y] : batches) {
        for (int64_t part = 0; part < 4; ++part)
          micro_batches.emplace_back(x.narrow(0, 3 * part, 3), y.narrow(0, 3 * part, 3));
      }
      const bool with_adam = staleness == "adam+stash";
      Pipeline pipe(ranks, cut(mlp(), 2), mse, with_adam ? adam : MakeOptimizer(sgd),
                    {.schedule = "async_1f1b", .staleness = staleness, .micro_batches = 4});
      Report report = pipe.run(batches);
      State expected = two_stages_by_hand(micro_batches, kind, with_adam ? adam : MakeOptimizer(sgd), with_adam);
      State other = two_stages_by_hand(micro_batches, kind == Kind::stash ? Kind::predicted : Kind::stash,
                                       with_adam ? adam : MakeOptimizer(sgd), with_adam);
      require(furthest(expected, other) > 1e-5, "the policy matters");
      double off = furthest(expected, pipe.state());
      require(off < 1e-12, fmt::format("{} is off by {}", staleness, off));
      require(report.stages.at(0).staleness.at(1) >= 18 && report.stages.at(1).staleness.at(0) == 20, "n of each");
    });
  }
}

// --- batches, evaluation, report

TEST(CppPipeline, evaluates_the_newest_weights_and_leaves_them) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(4, 12, 7);
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.micro_batches = 4});
    require(pipe.staleness() == "msnag", "auto is msnag for SGD, not " + pipe.staleness());
    Report trained = pipe.run(batches);
    State before = pipe.state();
    Report report = pipe.evaluate(batches);
    require(furthest(before, pipe.state()) == 0, "nothing is trained");
    auto plain = mlp();
    {
      at::NoGradGuard quiet;
      for (auto& item : plain->named_parameters()) item.value().copy_(before.at(item.key()));
    }
    for (size_t i = 0; i < batches.size(); ++i) {
      double expected = mse(plain->forward(batches[i].first), batches[i].second).item<double>();
      require(std::abs(report.losses.at(i) - expected) < 1e-12, "the loss of batch " + std::to_string(i));
    }
    require(pipe.run(Pairs{}).losses.empty(), "no batches, no losses");
    require(trained.stages.size() == 2 && trained.stages[1].rank == 1, "times of both stages on every rank");
    require(trained.utilisation() > 0 && trained.utilisation() <= 1, "busy for some of the time");
    require(trained.text().find("4 batches in") != std::string::npos, trained.text());
    size_t planned = 0;
    for (const auto& actions : pipe.plan().ranks) planned += actions.size();
    require(trained.trace.size() == planned, "every action of every rank is in the trace");
  });
}

TEST(CppPipeline, only_the_ends_read_batches_and_each_batch_once) {
  on_ranks(3, [&](const auto& ranks) {
    Pairs batches = data(6, 8);
    std::vector<int64_t> asked;
    Pipeline pipe(ranks, cut(mlp(2), 3), mse, sgd, {.schedule = "1f1b", .micro_batches = 4});
    Batches source(6, [&](int64_t number) -> std::optional<Batch> {
      asked.push_back(number);
      const auto& [x, y] = batches.at(static_cast<size_t>(number));
      return Batch(x, y);
    });
    pipe.run(source);
    std::vector<int64_t> all = {0, 1, 2, 3, 4, 5};
    require(asked == (ranks->rank() == 1 ? std::vector<int64_t>{} : all), "who reads what");
    require(furthest(in_one_process(mlp(2), batches), pipe.state()) < 1e-13, "trains like one process");
  });
}

TEST(CppPipeline, batches_that_do_not_fit_are_found_and_not_trained_on) {
  on_ranks(2, [&](const auto& ranks) {
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.schedule = "gpipe", .micro_batches = 4});
    State before = pipe.state();
    const int rank = ranks->rank();
    std::string said = refusal([&] { pipe.run(data(rank == 0 ? 3 : 4, 8)); });
    require(said.find(fmt::format("rank {} runs {} batches, here {}", 1 - rank, rank == 0 ? 4 : 3,
                                  rank == 0 ? 3 : 4)) != std::string::npos,
            said);
    Pairs other = data(3, 8);
    if (rank == 1) other[1].first = other[1].first + 1;
    said = refusal<std::exception>([&] { pipe.run(other); });
    require(said.find("is not the one that the first stage read") != std::string::npos, said);
    said = refusal<std::exception>([&] { pipe.run(Batches(3, [](int64_t) { return std::nullopt; })); });
    require(said.find("the batches ended after 0, though there were said to be 3") != std::string::npos, said);
    said = refusal<std::exception>([&] { pipe.run(data(3, 3)); });
    require(said.find("a batch of 3 samples cannot be cut into 4 micro-batches") != std::string::npos, said);
    // The pipeline goes on as if nothing had been.
    require(pipe.run(data(2, 8)).losses.size() == 2, "it runs again");
    require(furthest(before, pipe.state()) > 0, "and trains");
  });
}

// --- stages of all kinds

namespace {

struct TwoOutImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  TwoOutImpl() { linear = register_module("linear", torch::nn::Linear(6, 8)); }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {torch::tanh(linear(x)), x * 2}; }
};
TORCH_MODULE(TwoOut);

struct TwoInImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr}, skip{nullptr};
  TwoInImpl() {
    linear = register_module("linear", torch::nn::Linear(8, 3));
    skip = register_module("skip", torch::nn::Linear(6, 3));
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& x) { return linear(hidden) + skip(x); }
};
TORCH_MODULE(TwoIn);

std::pair<TwoOut, TwoIn> tuple_stages() {
  torch::manual_seed(3);
  std::pair<TwoOut, TwoIn> made{TwoOut(), TwoIn()};
  made.first->to(at::kDouble);
  made.second->to(at::kDouble);
  return made;
}

}  // namespace

TEST(CppPipeline, tuples_cross_a_border_and_become_arguments) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(4, 12);
    auto [first, second] = tuple_stages();
    Pipeline pipe(ranks, {first, second}, mse, sgd, {.schedule = "1f1b", .micro_batches = 3});
    pipe.run(batches);
    auto [front, back] = tuple_stages();
    std::vector<at::Tensor> all = front->parameters();
    for (const at::Tensor& one : back->parameters()) all.push_back(one);
    auto optimizer = sgd(all);
    for (const auto& [x, y] : batches) {
      optimizer->zero_grad();
      auto [hidden, same] = front->forward(x);
      mse(back->forward(hidden, same), y).backward();
      optimizer->step();
    }
    State expected;
    for (const auto& [name, tensor] : state_of(*front)) expected["0." + name] = tensor;
    for (const auto& [name, tensor] : state_of(*back)) expected["1." + name] = tensor;
    require(furthest(expected, pipe.state()) < 1e-13, "trains like one process");
  });
}

TEST(CppPipeline, edges_may_leave_stages_out) {
  // 0 → 1 → 2, and 0 → 2: on two ranks, the middle one has nothing to train.
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(4, 12);
    auto [first, second] = tuple_stages();
    auto split = [first = first](const at::Tensor& x) mutable {
      auto [hidden, same] = first->forward(x);
      return std::tuple(hidden, same);
    };
    auto join = [second = second](const at::Tensor& x, const at::Tensor& hidden) mutable {
      return second->forward(hidden, x);
    };
    std::vector<Part> parts = {Part(first.ptr(), split), Part([](const at::Tensor& x) { return x * 3; }),
                               Part(second.ptr(), join)};
    // The edges into stage 2 come in this order: from 0, then from 1.
    std::vector<schedule::Edge> edges = {{0, 1}, {0, 2}, {1, 2}};
    Pipeline pipe(ranks, parts, mse, sgd,
                  {.schedule = "1f1b", .micro_batches = 3, .placement = {0, 1, 0}, .edges = edges});
    pipe.run(batches);
    auto [front, back] = tuple_stages();
    std::vector<at::Tensor> all = front->parameters();
    for (const at::Tensor& one : back->parameters()) all.push_back(one);
    auto optimizer = sgd(all);
    for (const auto& [x, y] : batches) {
      optimizer->zero_grad();
      auto [hidden, same] = front->forward(x);
      mse(back->forward(hidden * 3, same), y).backward();
      optimizer->step();
    }
    State expected;
    for (const auto& [name, tensor] : state_of(*front)) expected["0." + name] = tensor;
    for (const auto& [name, tensor] : state_of(*back)) expected["2." + name] = tensor;
    require(furthest(expected, pipe.state()) < 1e-13, "trains like one process");
  });
}

TEST(CppPipeline, recomputation_gives_the_same_bits_with_dropout_and_counts_batch_norm_once) {
  on_ranks(2, [&](const auto& ranks) {
    auto trained = [&](bool recompute) {
      torch::manual_seed(5);
      torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.4),
                                  torch::nn::Linear(8, 3));
      Pairs batches = data(5, 12, 0, at::kFloat);
      Pipeline pipe(ranks, cut(model, 2), mse, sgd,
                    {.schedule = "1f1b", .micro_batches = 3, .recompute = recompute, .seed = 9});
      pipe.run(batches);
      return pipe.state();
    };
    State kept = trained(false), again = trained(true);
    require(furthest(kept, again) == 0, "the same bits");
    require(again.at("1.num_batches_tracked").item<int64_t>() == 15, "each micro-batch counts once");
  });
}

TEST(CppPipeline, a_loss_may_say_what_it_counts) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(3, 10, 7);  // micro-batches of 4, 3, 3: a mean of means is not the mean
    auto summed = [](const at::Tensor& output, const at::Tensor& y) {
      return std::pair<at::Tensor, int64_t>((output - y).square().sum(), y.numel());
    };
    Pipeline pipe(ranks, cut(mlp(), 2), summed, sgd, {.schedule = "gpipe", .micro_batches = 3});
    pipe.run(batches);
    require(furthest(in_one_process(mlp(), batches), pipe.state()) < 1e-13, "trains like one process");
    Pipeline other(ranks, cut(mlp(), 2), torch::nn::MSELoss(), sgd, {.schedule = "gpipe", .micro_batches = 3});
    other.run(batches);
    require(furthest(pipe.state(), other.state()) < 1e-13, "a module is a loss, too");
  });
}

// --- failures and refusals

TEST(CppPipeline, a_stage_that_throws_ends_all_ranks_with_one_error_that_names_it_and_can_run_again) {
  for (const char* schedule : {"gpipe", "1f1b", "async_1f1b"}) {
    on_ranks(2, [&](const auto& ranks) {
      auto model = mlp();
      auto calls = std::make_shared<int>(0);
      auto fails = [last = model[2], calls](const at::Tensor& x) {
        if (++*calls == 10) throw std::runtime_error("no more today");
        return std::dynamic_pointer_cast<torch::nn::LinearImpl>(last)->forward(x);
      };
      Pipeline pipe(ranks, {layers(model, 0, 2), Part(model[2], fails)}, mse, sgd,
                    {.schedule = schedule, .micro_batches = 4});
      if (ranks->rank() == 1) {
        std::string said = refusal<std::runtime_error>([&] { pipe.run(data(5, 12)); });
        require(said == "no more today", said);
      } else {
        std::string said = refusal<StageFailed>([&] { pipe.run(data(5, 12)); });
        require(said == "stage 1 (Linear), forward of micro-batch 9 (rank 1): no more today", said);
      }
      require(pipe.run(data(3, 12)).losses.size() == 3, "it can run again");
    });
  }
}

TEST(CppPipeline, what_cannot_be_is_refused_in_one_line_that_says_what_was_expected) {
  on_ranks(2, [&](const auto& ranks) {
    auto made = [&](PipelineOptions options, const MakeOptimizer& make = sgd) {
      return refusal([&] { Pipeline(ranks, cut(mlp(), 2), mse, make, options); });
    };
    auto says = [](const std::string& said, const std::string& expected) {
      require(said.find(expected) != std::string::npos, expected + " is in: " + said);
      require(said.find('\n') == std::string::npos, "one line");
    };
    says(made({.schedule = "1f1"}), "did you mean 1f1b?");
    says(made({.staleness = "msnug"}), "did you mean msnag?");
    says(made({.staleness = "adam"}), "adam is for the optimizer adam; for sgd use msnag");
    says(made({.schedule = "2bw", .staleness = "msnag", .accumulate = 4}), "2bw itself says which version");
    says(made({.micro_batches = 0}), "micro_batches=0, accumulate=1: expected numbers from 1 on");
    says(made({.window = {1}}), "window");
    says(made({.precision = "fp16"}), "precision=\"fp16\": expected fp32 or bf16");
    says(made({.placement = {0, 0}}), "2 stages on ranks [0, 0] leave some of the group's 2 ranks without a stage");
    says(made({}, [](auto parameters) { return std::make_unique<torch::optim::LBFGS>(parameters); }), "LBFGS");
    says(made({},
              [](auto parameters) {
                return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1).amsgrad(true));
              }),
         "amsgrad is not supported in a pipeline");
    says(made({}, [](auto) { return sgd({at::zeros({2}).set_requires_grad(true)}); }), "took others");
    says(made({.staleness = "msnag"},
              [](auto parameters) { return std::make_unique<torch::optim::RMSprop>(parameters, 0.1); }),
         "msnag is for SGD");
    says(refusal([&] { cut(mlp(), 4); }), "4 stages of a model with 3 layers: expected at most 3");
    auto shared = torch::nn::Linear(6, 6);
    says(refusal([&] { Pipeline(ranks, {torch::nn::Sequential(shared), torch::nn::Sequential(shared)}, mse, sgd); }),
         "0.weight of stage 0 and 0.weight of stage 1 are one parameter");
    // An optimizer that nobody can predict: its weights are kept.
    Pipeline unknown(ranks, cut(mlp(), 2), mse,
                     [](auto parameters) { return std::make_unique<torch::optim::RMSprop>(parameters, 0.01); });
    require(unknown.staleness() == "stash", unknown.staleness());
    Pipeline noted(ranks, cut(mlp(), 2), mse, sgd, {.schedule = "gpipe", .staleness = "stash"});
    require(noted.notes().size() == 1 && noted.notes()[0].find("no weights are stale") != std::string::npos, "a note");
  });
}

TEST(CppPipeline, a_stage_that_gives_what_the_next_one_does_not_take_is_named) {
  on_ranks(2, [&](const auto& ranks) {
    auto [first, second] = tuple_stages();
    auto three = [first = first](const at::Tensor& x) mutable {
      auto [hidden, same] = first->forward(x);
      return std::tuple(hidden, same, x);
    };
    Pipeline pipe(ranks, {Part(first.ptr(), three), second}, mse, sgd, {.schedule = "gpipe", .micro_batches = 2});
    std::string said = refusal<std::exception>([&] { pipe.run(data(2, 4)); });
    require(said.find("2 values were expected, 3 came") != std::string::npos, said);
    if (ranks->rank() == 0) require(said.find("stage 1 (TwoIn), forward of micro-batch 0 (rank 1)") == 0, said);

    std::vector<Part> parts = {Part(first.ptr(), three), [](const at::Tensor& x) { return x; }, second};
    Pipeline skipping(
        ranks, parts, mse, sgd,
        {.schedule = "gpipe", .micro_batches = 2, .placement = {0, 1, 0}, .edges = {{0, 1}, {0, 2}, {1, 2}}});
    said = refusal<std::exception>([&] { skipping.run(data(2, 4)); });
    require(said.find("stage 0 (TwoOut) gave 3 values for 2 later stages") != std::string::npos, said);
  });
}

// --- for the replay of tests/test_pipeline_cpp.py, which says where and computes them again in Python

TEST(CppPipeline, ledgers_for_replay) {
  const char* folder = std::getenv("DDIP_TEST_LEDGERS");
  if (!folder) GTEST_SKIP() << "tests/test_pipeline_cpp.py asks for them";
  struct Cell {
    std::string optimizer;
    PipelineOptions options;
  };
  const std::map<std::string, MakeOptimizer> optimizers = {
      {"sgd", sgd},
      {"sgd with decay",
       [](auto parameters) {
         return std::make_unique<torch::optim::SGD>(
             parameters, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
       }},
      {"adam", [](auto parameters) { return std::make_unique<torch::optim::Adam>(parameters, 0.01); }},
      {"adamw",
       [](auto parameters) {
         return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
       }},
  };
  const RateFactor fading = [](int64_t step) { return std::pow(0.97, static_cast<double>(step)); };
  const std::vector<Cell> cells = {
      {"sgd", {.schedule = "gpipe", .staleness = "none", .recompute = true}},
      {"adam", {.schedule = "1f1b", .staleness = "none", .scheduler = fading}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "none"}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "none", .recompute = true}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "stash"}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "msnag"}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "msnag", .window = {4, 0}, .scheduler = fading}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "msnag", .clip = 0.05, .recompute = true}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "msnag+stash", .accumulate = 2}},
      {"sgd with decay", {.schedule = "async_1f1b", .staleness = "aggmsnag", .accumulate = 3}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "lwp", .window = {3, 0}}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "spectrain"}},
      {"adam", {.schedule = "async_1f1b", .staleness = "adam", .window = {4, 0}}},
      {"adamw", {.schedule = "async_1f1b", .staleness = "adamw", .scheduler = fading}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "pipemare", .window = {3, 0}}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "spike", .window = {3, 0}}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "gap_aware", .window = {3, 0}}},
      {"sgd", {.schedule = "virtual_async", .staleness = "msnag", .max_staleness = 1}},
      {"sgd", {.schedule = "2bw", .staleness = "stash", .accumulate = 4}},
      {"sgd", {.schedule = "paci", .staleness = "none", .accumulate = 4}},
  };
  on_ranks(2, [&](const auto& ranks) {
    int number = 0;
    for (auto [optimizer, options] : cells) {
      auto model = mlp(1, at::kFloat);
      options.micro_batches = 4;
      options.seed = 5;
      options.ledger = std::filesystem::path(folder) / fmt::format("{:02}.ledger", number++);
      Pipeline pipe(ranks, {layers(model, 0, 2), layers(model, 2, 3)}, mse, optimizers.at(optimizer), options);
      Pairs batches = data(6, 12, 7, at::kFloat);
      pipe.run(Pairs(batches.begin(), batches.begin() + 3));  // two runs, one ledger
      pipe.run(Pairs(batches.begin() + 3, batches.end()));
    }
  });
}

}  // namespace ddip::pipeline
