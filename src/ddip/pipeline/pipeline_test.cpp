// Pipelines of C++ on real ranks, each beside one process of plain libtorch.
#include <cmath>
#include <cstdlib>

#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {

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

TEST(CppPipeline, limits_the_norm_of_each_stage_of_its_share_and_of_all) {
  for (const char* clipping : {"local", "proportional", "global", "auto"}) {
    on_ranks(2, [&](const auto& ranks) {
      Pairs batches = data(4, 12);
      const double most = 0.02;
      Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd,
                    {.schedule = "gpipe", .micro_batches = 4, .clip = most, .clipping = clipping});
      pipe.run(batches);
      auto model = mlp();
      auto optimizer = sgd(model->parameters());
      const std::string kind = clipping;
      for (const auto& [x, y] : batches) {
        optimizer->zero_grad();
        mse(model->forward(x), y).backward();
        if (kind == "global" || kind == "auto") {
          torch::nn::utils::clip_grad_norm_(model->parameters(), most);
        } else {
          const double front = kind == "local" ? 1 : std::sqrt(56.0 / 83),
                       back = kind == "local" ? 1 : std::sqrt(27.0 / 83);
          torch::nn::utils::clip_grad_norm_(model[0]->parameters(), most * front);
          torch::nn::utils::clip_grad_norm_(model[2]->parameters(), most * back);
        }
        optimizer->step();
      }
      double off = furthest(state_of(*model), pipe.state());
      require(off < 1e-12, fmt::format("{} is off by {}", clipping, off));
      require(furthest(state_of(*model), in_one_process(mlp(), batches)) > 1e-3, "and it clips");
    });
  }
}

TEST(CppPipeline, replicas_train_like_one_process_on_the_joint_batches) {
  for (const char* schedule : {"1f1b", "async_1f1b"}) {
    on_ranks(4, [&](const auto& ranks) {
      Pairs whole = data(5, 16, 10), own;
      Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd,
                    {.schedule = schedule,
                     .staleness = "none",
                     .micro_batches = 2,
                     .accumulate = 1,
                     .window = {0, 0},
                     .replicas = 2});
      require(pipe.replica() == ranks->rank() / 2, "two ranks are a pipeline");
      for (const auto& [x, y] : whole) {
        auto half = x.size(0) / 2;
        own.emplace_back(x.narrow(0, pipe.replica() * half, half), y.narrow(0, pipe.replica() * half, half));
      }
      pipe.run(own);
      // Without a window an asynchronous pipeline steps after each micro-batch, with no staleness.
      Pairs steps;
      for (const auto& [x, y] : whole) {
        if (std::string(schedule) == "1f1b") {
          steps.emplace_back(x, y);
          continue;
        }
        auto xs = x.reshape({2, -1, 6}), ys = y.reshape({2, -1, 3});  // by replica
        for (const auto& [begin, size] :
             {std::pair((int64_t)0, (xs.size(1) + 1) / 2), std::pair((xs.size(1) + 1) / 2, xs.size(1) / 2)})
          steps.emplace_back(xs.narrow(1, begin, size).reshape({-1, 6}), ys.narrow(1, begin, size).reshape({-1, 3}));
      }
      double off = furthest(in_one_process(mlp(), steps), pipe.state());
      require(off < 1e-12, fmt::format("{} is off by {}", schedule, off));
    });
  }
}

TEST(CppPipeline, replicas_draw_random_numbers_of_their_own) {
  on_ranks(2, [&](const auto& ranks) {
    at::Tensor seen;
    auto model = mlp();
    auto noisy = [&seen, front = layers(model, 0, 3)](const at::Tensor& x) mutable {
      seen = torch::dropout(torch::ones({100}, at::kDouble), 0.5, true);
      return front->forward(x) * seen.sum();
    };
    Pipeline pipe(ranks, {Part(model.ptr(), noisy)}, mse, sgd,
                  {.schedule = "gpipe", .micro_batches = 1, .replicas = 2});
    pipe.run(data(1, 4));
    at::Tensor both = ranks->all_gather(seen);
    require(!at::equal(both[0], both[1]), "other numbers");
  });
}

TEST(CppPipeline, a_rate_changed_between_runs_changes_what_follows) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(6, 12);
    const RateFactor fading = [](int64_t step) { return std::pow(0.9, static_cast<double>(step)); };
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.schedule = "gpipe", .micro_batches = 4, .scheduler = fading});
    pipe.run(Pairs(batches.begin(), batches.begin() + 3));
    auto& options = pipe.optimizer(ranks->rank())->param_groups()[0].options();
    require(pipe.optimizer(1 - ranks->rank()) == nullptr, "the other stage's is elsewhere");
    require(std::abs(options.get_lr() - 0.05 * std::pow(0.9, 3)) < 1e-15, "the next step's rate");
    options.set_lr(options.get_lr() * 3);
    pipe.run(Pairs(batches.begin() + 3, batches.end()));
    const RateFactor changed = [&](int64_t step) { return fading(step) * (step < 3 ? 1 : 3); };
    require(furthest(in_one_process(mlp(), batches, sgd, 1, changed), pipe.state()) < 1e-12, "all later ones alike");
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
      {"two groups",
       [](auto parameters) {
         if (parameters.size() < 2) return std::make_unique<torch::optim::SGD>(parameters, 0.05);
         std::vector<torch::optim::OptimizerParamGroup> groups;
         groups.emplace_back(std::vector<at::Tensor>{parameters[0]});
         groups.emplace_back(std::vector<at::Tensor>{parameters[1]},
                             std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.2).momentum(0.5)));
         return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.05).momentum(0.9));
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
      {"sgd", {.schedule = "async_1f1b", .staleness = "msnag", .clip = 0.05, .clipping = "global"}},
      {"adam", {.schedule = "zb1", .staleness = "none", .clip = 0.05}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "stash", .precision = "bf16"}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "msnag+stash", .accumulate = 2}},
      {"sgd with decay", {.schedule = "async_1f1b", .staleness = "aggmsnag", .accumulate = 3}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "lwp", .window = {3, 0}}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "spectrain"}},
      {"adam",
       {.schedule = "async_1f1b", .staleness = "adam", .staleness_options = {.second_decays = true}, .window = {4, 0}}},
      {"adamw", {.schedule = "async_1f1b", .staleness = "adamw", .scheduler = fading}},
      {"sgd",
       {.schedule = "async_1f1b",
        .staleness = "pipemare",
        .staleness_options = {.pipemare = {.annealing_steps = 9, .decay = 0.5}},
        .window = {3, 0}}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "spike", .window = {3, 0}}},
      {"sgd",
       {.schedule = "async_1f1b",
        .staleness = "gap_aware",
        .staleness_options = {.gap = {.decay = 0.9, .eps = 1e-3}},
        .window = {3, 0}}},
      {"sgd", {.schedule = "virtual_async", .staleness = "msnag", .max_staleness = 1}},
      {"sgd", {.schedule = "2bw", .accumulate = 4}},   // the policy is the one that it has by itself
      {"sgd", {.schedule = "paci", .accumulate = 4}},  // none
      {"two groups", {.schedule = "async_1f1b", .staleness = "msnag"}},
      {"sgd",
       {.schedule = "async_1f1b", .staleness = "stash", .accumulate = 5}},  // 12 micro-batches: two are left over
      {"sgd", {.schedule = "async_1f1b", .staleness = "msnag", .order = "ready", .window = {4, 0}}},
      {"adam", {.schedule = "async_1f1b", .staleness = "adam", .accumulate = 2, .order = "ready", .window = {5, 0}}},
      {"sgd", {.schedule = "async_1f1b", .staleness = "stash", .precision = "fp16", .loss_scale = {1 << 16, 2}}},
      {"sgd", {.schedule = "1f1b", .staleness = "none", .precision = "fp16", .loss_scale = {1 << 16, 2}}},
      {"sgd", {.schedule = "gpipe", .smoothing = {.passes = 3, .radius = 0.02}}},
      {"adam", {.schedule = "1f1b", .recompute = true, .smoothing = {.passes = 2, .radius = 0.05}}},
  };
  on_ranks(2, [&](const auto& ranks) {
    int number = 0;
    for (auto [optimizer, options] : cells) {
      auto model = mlp(1, at::kFloat);
      auto front = layers(model, 0, 2);
      front->push_back(torch::nn::Dropout(0.2));
      options.micro_batches = 4;
      options.seed = 5;
      options.ledger = std::filesystem::path(folder) / fmt::format("{:02}.ledger", number++);
      Pipeline pipe(ranks, {front, layers(model, 2, 3)}, mse, optimizers.at(optimizer), options);
      Pairs batches = data(6, 12, 7, at::kFloat);
      pipe.run(Pairs(batches.begin(), batches.begin() + 3));  // two runs, one ledger
      pipe.run(Pairs(batches.begin() + 3, batches.end()));
    }
  });
}

}  // namespace ddip::pipeline
