// Stages, batches and reports of all kinds, on real ranks.
#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {

// --- batches, evaluation, report

TEST(CppPipeline, evaluates_the_newest_weights_and_leaves_them) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(4, 12, 7);
    const auto with_dropout = []() -> torch::nn::Sequential {
      auto model = mlp();
      model->push_back(torch::nn::Dropout(0.3));
      return model;
    };
    Pipeline pipe(ranks, cut(with_dropout(), 2), mse, sgd, {.micro_batches = 4});
    require(pipe.staleness() == "msnag", "auto is msnag for SGD, not " + pipe.staleness());
    Report trained = pipe.run(batches);
    State before = pipe.state();
    Report report = pipe.evaluate(batches);
    require(furthest(before, pipe.state()) == 0, "nothing is trained");
    torch::nn::Sequential plain = with_dropout();
    plain->eval();
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

TEST(CppPipeline, metrics_of_an_evaluation_are_means_over_all_samples) {
  on_ranks(2, [&](const auto& ranks) {
    const Pairs batches = data(3, 12, 5);
    Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.micro_batches = 4});
    const auto largest = [](const at::Tensor& output, const at::Tensor& y) {
      return (output.argmax(1) == y.argmax(1)).to(at::kDouble).mean();
    };
    const auto farthest = [](const at::Tensor& output, const at::Tensor& y) {
      const at::Tensor away = (output - y).abs();
      return std::pair(away.sum(), away.numel());
    };
    const auto samples = [](const at::Tensor& output, const at::Tensor&) { return at::full({}, output.size(0)); };
    const Report report = pipe.evaluate(batches, {{"accuracy", largest}, {"away", farthest}, {"samples", samples}});
    torch::nn::Sequential plain = mlp();
    double right = 0, away = 0, squares = 0, count = 0;
    for (const std::pair<at::Tensor, at::Tensor>& batch : batches) {
      const at::Tensor x = batch.first, y = batch.second, output = plain->forward(x);
      right += (output.argmax(1) == y.argmax(1)).sum().item<double>();
      away += (output - y).abs().sum().item<double>();
      for (const at::Tensor& part : x.tensor_split(4)) squares += static_cast<double>(part.size(0) * part.size(0));
      count += static_cast<double>(x.size(0));
    }
    require(std::abs(report.metrics.at("accuracy") - right / count) < 1e-12, report.text());
    require(std::abs(report.metrics.at("away") - away / (3 * count)) < 1e-12, "a sum and what it is a sum over");
    require(std::abs(report.metrics.at("samples") - squares / count) < 1e-12, "a mean over the samples");
    require(report.text().find(", accuracy ") != std::string::npos, report.text());
    require(pipe.evaluate(batches).metrics.empty() && pipe.run(batches).metrics.empty(), "nobody asked");
    const Report nothing = pipe.evaluate(Pairs{}, {{"accuracy", largest}});
    require(std::isnan(nothing.metrics.at("accuracy")) && !nothing.training, "of nothing there is no mean");
    try {
      pipe.evaluate(batches, ranks->rank() == 0 ? Metrics{{"a", mse}} : Metrics{{"b", mse}});
      require(false, "other names are refused");
    } catch (const ConfigError& error) {
      require(std::string(error.what()).find("asks for the metrics") != std::string::npos, error.what());
    }
  });
}

TEST(CppPipeline, gaps_say_how_far_weights_moved_and_how_near_predictions_came) {
  on_ranks(2, [&](const auto& ranks) {
    const Pairs batches = data(4, 12);
    for (const std::string staleness : {"none", "msnag"}) {
      Pipeline pipe(ranks, cut(mlp(), 2), mse, sgd, {.staleness = staleness, .micro_batches = 4, .gaps = true});
      const Report report = pipe.run(batches);
      const Gaps::Means first = report.stages.at(0).gap.value(), last = report.stages.at(1).gap.value();
      require(first.moved > 0 && last.moved == 0 && last.error == 0, "the last stage's backward follows at once");
      require(staleness == "none" ? first.error == 1 : first.error > 0 && first.error < 1, report.text());
      require(report.text().find("moved") != std::string::npos, report.text());
      require(!pipe.evaluate(batches).stages.at(0).gap, "an evaluation has none");
    }
    Pipeline without(ranks, cut(mlp(), 2), mse, sgd, {.micro_batches = 4});
    require(!without.run(batches).stages.at(0).gap, "nobody asked");
  });
}

// The function of the rates is asked after the gradients were summed over the replicas, and before the step.
TEST(CppPipeline, replicas_that_a_failure_left_a_step_apart_are_equal_again) {
  on_ranks(2, [&](const auto& ranks) {
    int asked = 0;  // for the rate of step 2: at the end of step 1, then before step 2
    const RateFactor factor = [&](int64_t step) {
      if (step == 2 && ++asked == 2 && ranks->rank() == 1) throw std::runtime_error("no rate");
      return 1.0;
    };
    const auto adam = [](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
    };
    auto model = mlp();
    model->push_back(torch::nn::BatchNorm1d(3));
    model->to(at::kDouble);
    Pipeline pipe(ranks, cut(model, 1), mse, adam,
                  {.schedule = "1f1b", .micro_batches = 2, .scheduler = factor, .replicas = 2});
    const Pairs all = data(8, 12);
    Pairs mine;
    for (size_t i = static_cast<size_t>(ranks->rank()); i < all.size(); i += 2) mine.push_back(all[i]);
    bool failed = false;
    try {
      pipe.run(mine);
    } catch (const std::exception&) {
      failed = true;
    }
    require(failed, "all ranks learn of it");
    const auto same = [&](const std::string& name) {
      const at::Tensor both = ranks->all_gather(state_of(*model).at(name));
      return at::equal(both[0], both[1]);
    };
    require(!same("0.weight"), "one has done a step that the other has not");
    pipe.run(mine);
    require(same("0.weight") && same("2.bias"), "they are equal again");
    require(!same("3.running_mean"), "statistics are each replica's own");
    require(pipe.notes().back().find("replicas of stages 0 had done other steps") == 0, pipe.notes().back());
  });
}

// Its second layer is used if its first sample says so.
struct SometimesImpl : torch::nn::Cloneable<SometimesImpl> {
  SometimesImpl() { reset(); }
  void reset() override {
    extra = register_module("extra", torch::nn::Linear(6, 6));
    body = register_module("body", torch::nn::Linear(6, 6));
  }
  at::Tensor forward(const at::Tensor& x) { return x[0][0].item<double>() > 0 ? body(x) + extra(x) : body(x); }
  torch::nn::Linear extra{nullptr}, body{nullptr};
};
TORCH_MODULE(Sometimes);

TEST(CppPipeline, what_a_step_has_no_gradient_for_stays_as_in_one_process) {
  on_ranks(2, [&](const auto& ranks) {
    const auto model = [] {
      torch::manual_seed(2);
      torch::nn::Sequential made(Sometimes(), torch::nn::Linear(6, 3));
      made->to(at::kDouble);
      return made;
    };
    Pairs batches = data(6, 12);
    for (size_t i = 0; i < batches.size(); ++i) batches[i].first.select(1, 0).abs_().mul_(i == 2 || i == 5 ? 1 : -1);
    const MakeOptimizer adamw = [](const std::vector<at::Tensor>& parameters) {
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    };
    for (const std::string schedule : {"1f1b", "gpipe"}) {
      Pipeline pipe(ranks, cut(model(), 2), mse, adamw, {.schedule = schedule, .micro_batches = 4});
      pipe.run(batches);
      require(furthest(in_one_process(model(), batches, adamw), pipe.state()) < 1e-12, schedule);
    }
    Pipeline ahead(ranks, cut(model(), 2), mse, adamw, {.staleness = "adamw", .micro_batches = 4});
    ahead.run(Pairs(batches.begin(), batches.begin() + 2));
    const State before = state_of(*model());
    require(at::equal(ahead.state().at("0.extra.weight"), before.at("0.extra.weight")), "not used yet");
    require(!at::equal(ahead.state().at("0.body.weight"), before.at("0.body.weight")), "which was used");
    ahead.run(batches);
    require(!at::equal(ahead.state().at("0.extra.weight"), before.at("0.extra.weight")), "used at last");
  });
}

TEST(CppPipeline, a_model_is_cut_where_python_cuts_it) {
  on_ranks(1, [&](const auto&) {
    auto sizes = [](int layers, int stages) {
      torch::nn::Sequential model;
      for (int layer = 0; layer < layers; ++layer) model->push_back(torch::nn::Linear(1, 1));
      std::vector<size_t> found;
      for (const Part& part : cut(model, stages)) found.push_back(part.module->children().size());
      return found;
    };
    // round() of Python goes to the even neighbour from the middle.
    require(sizes(5, 2) == std::vector<size_t>{2, 3}, "5 in 2");
    require(sizes(7, 2) == std::vector<size_t>{4, 3}, "7 in 2");
    require(sizes(5, 3) == std::vector<size_t>{2, 1, 2}, "5 in 3");
    require(sizes(3, 3) == std::vector<size_t>{1, 1, 1}, "3 in 3");
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

// Both stages in plain libtorch; between them what passes is multiplied. `back_name`: the last stage's in the pipeline.
State tuples_in_one_process(const Pairs& batches, double factor, const std::string& back_name) {
  auto [front, back] = tuple_stages();
  std::vector<at::Tensor> all = front->parameters();
  for (const at::Tensor& one : back->parameters()) all.push_back(one);
  auto optimizer = sgd(all);
  for (const auto& [x, y] : batches) {
    optimizer->zero_grad();
    auto [hidden, same] = front->forward(x);
    mse(back->forward(hidden * factor, same), y).backward();
    optimizer->step();
  }
  State expected;
  for (const auto& [name, tensor] : state_of(*front)) expected["0." + name] = tensor;
  for (const auto& [name, tensor] : state_of(*back)) expected[back_name + name] = tensor;
  return expected;
}

TEST(CppPipeline, tuples_cross_a_border_and_become_arguments) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(4, 12);
    auto [first, second] = tuple_stages();
    Pipeline pipe(ranks, {first, second}, mse, sgd, {.schedule = "1f1b", .micro_batches = 3});
    pipe.run(batches);
    require(furthest(tuples_in_one_process(batches, 1, "1."), pipe.state()) < 1e-13, "trains like one process");
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
    require(furthest(tuples_in_one_process(batches, 3, "2."), pipe.state()) < 1e-13, "trains like one process");
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

namespace {

struct MaskedImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  MaskedImpl() { linear = register_module("linear", torch::nn::Linear(8, 3)); }
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {}) {
    return mask ? linear(x) * *mask : linear(x);
  }
};
TORCH_MODULE(Masked);

}  // namespace

TEST(CppPipeline, arguments_with_defaults_may_be_left_out) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(3, 12);
    auto model = mlp();
    Masked last;
    last->to(at::kDouble);
    last->linear = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model[2]);
    last->replace_module("linear", last->linear);
    Pipeline pipe(ranks, {layers(model, 0, 2), last}, mse, sgd, {.schedule = "gpipe", .micro_batches = 4});
    pipe.run(batches);
    State expected = in_one_process(mlp(), batches), found = pipe.state();
    require(at::allclose(expected.at("2.weight"), found.at("1.linear.weight"), 0, 1e-13), "trains like one process");
  });
}

TEST(CppPipeline, a_stage_may_have_losses_of_its_own_and_frozen_weights) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs batches = data(4, 10);
    auto model = mlp();
    auto frozen = [](torch::nn::Sequential& of) { of[0]->named_parameters()["bias"].set_requires_grad(false); };
    frozen(model);
    auto losses = std::make_shared<std::vector<at::Tensor>>();
    Part first(layers(model, 0, 2));
    first.forward = [front = layers(model, 0, 2), losses](const Value& x) mutable {
      at::Tensor hidden = front->forward(*x.tensor());
      *losses = {hidden.square().mean()};
      return Value{hidden};
    };
    first.auxiliary_losses = [losses] { return std::exchange(*losses, {}); };
    Pipeline pipe(ranks, {first, layers(model, 2, 3)}, mse, sgd, {.schedule = "1f1b", .micro_batches = 3});
    pipe.run(batches);
    auto plain = mlp();
    frozen(plain);
    std::vector<at::Tensor> trained;
    for (const at::Tensor& one : plain->parameters()) {
      if (one.requires_grad()) trained.push_back(one);
    }
    auto optimizer = sgd(trained);
    for (const auto& [x, y] : batches) {
      optimizer->zero_grad();
      at::Tensor hidden = layers(plain, 0, 2)->forward(x);
      (mse(layers(plain, 2, 3)->forward(hidden), y) + hidden.square().mean()).backward();
      optimizer->step();
    }
    State expected = state_of(*plain), found = pipe.state();
    require(at::equal(expected.at("0.bias"), found.at("0.0.bias")), "frozen");
    require(at::allclose(expected.at("0.weight"), found.at("0.0.weight"), 0, 1e-13), "trains like one process");
  });
}

TEST(CppPipeline, in_bfloat16_a_policy_without_stash_recomputes_and_it_learns) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs one = data(1, 12, 0, at::kFloat), batches;
    for (int i = 0; i < 60; ++i) batches.push_back(one[0]);
    Pipeline pipe(ranks, cut(mlp(1, at::kFloat), 2), mse, sgd,
                  {.staleness = "msnag", .micro_batches = 4, .precision = "bf16"});
    require(pipe.notes().size() == 1 && pipe.notes()[0].find("recompute=true") == 0, "a note");
    Report report = pipe.run(batches);
    require(report.losses.back() < report.losses.front() / 2, "it learns");
    auto first_loss = [&](const char* precision) {
      Pipeline fresh(ranks, cut(mlp(1, at::kFloat), 2), mse, sgd, {.micro_batches = 4, .precision = precision});
      return fresh.run(one).losses.at(0);
    };
    require(first_loss("bf16") != first_loss("fp32"), "and is not fp32");
  });
}

TEST(CppPipeline, in_half_precision_the_loss_is_scaled_and_steps_that_are_too_large_are_left_out) {
  on_ranks(2, [&](const auto& ranks) {
    Pairs one = data(1, 12, 0, at::kFloat), batches;
    for (int i = 0; i < 60; ++i) batches.push_back(one[0]);
    for (const char* schedule : {"1f1b", "async_1f1b"}) {
      Pipeline pipe(ranks, cut(mlp(1, at::kFloat), 2), mse, sgd,
                    {.schedule = schedule, .micro_batches = 4, .precision = "fp16", .loss_scale = {1 << 20, 2000}});
      const Report report = pipe.run(batches);
      require(report.losses.back() < report.losses.front() / 2, "it learns");
      const double scale = report.stages.back().loss_scale.value();
      require(scale < (1 << 20), "the scale was too large");
      // Known at once, each halving costs a step; known late, some more.
      const auto halvings = static_cast<int64_t>(std::log2((1 << 20) / scale));
      for (const StageTimes& stage : report.stages) require(stage.left_out <= 4 * halvings, "and not for long");
      const int64_t most = std::max(report.stages[0].left_out, report.stages[1].left_out);
      require(schedule == std::string("1f1b") ? most == halvings : most > halvings, "steps were left out");
      require(report.text().find(fmt::format("loss scale {}, {} steps left out", scale, most)) != std::string::npos,
              "the report says so");
    }
    auto first_loss = [&](const char* precision) {
      Pipeline fresh(ranks, cut(mlp(1, at::kFloat), 2), mse, sgd, {.micro_batches = 4, .precision = precision});
      return fresh.run(one).losses.at(0);
    };
    require(first_loss("fp16") != first_loss("fp32") && first_loss("fp16") != first_loss("bf16"), "of its own kind");
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

TEST(CppPipeline, a_loss_that_is_no_number_is_told) {
  on_ranks(2, [](const auto& ranks) {
    Pipeline pipe(ranks, cut(mlp(2), 2), mse, sgd, {.schedule = "1f1b", .micro_batches = 4});
    Pairs batches = data(3, 8);
    require(!pipe.run(batches).not_finite_in, "all is well");
    batches[1].second.fill_(std::numeric_limits<double>::quiet_NaN());
    const Report report = pipe.run(batches);
    require(report.not_finite_in == 1u, "from the second on");
    require(report.text().ends_with("; the loss is nan in batch 1"), report.text());
    require(pipe.notes().back() == "the loss is nan in batch 1 of a run: weights are no numbers any more, or will be",
            pipe.notes().back());
  });
}

}  // namespace ddip::pipeline
