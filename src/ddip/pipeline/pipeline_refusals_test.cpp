// What fails and what is refused, on real ranks.
#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {

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
    says(made({.staleness = "pipemare", .staleness_options = {.pipemare = {.decay = 1.5}}}), "pipemare_decay=1.5");
    says(made({.staleness = "gap_aware", .staleness_options = {.gap = {.decay = 1}}}), "gap_decay=1");
    says(made({.schedule = "gpipe", .smoothing = {.passes = 4}}),
         "smoothing: passes=4, radius=0: expected from 1 to 1024 passes and a radius above 0");
    says(made({.schedule = "gpipe", .smoothing = {.passes = 0, .radius = 0.1}}), "passes=0");
    says(made({.smoothing = {.passes = 4, .radius = 0.1}}),
         "smoothing fills the bubbles of synchronous schedules, and async_1f1b has none; expected gpipe, 1f1b");
    says(made({.schedule = "gpipe", .staleness = "stash", .smoothing = {.passes = 4, .radius = 0.1}}),
         "smoothing with staleness=\"stash\": where nothing is stale, expected none");
    says(made({.precision = "fp8"}), "precision=\"fp8\": expected one of fp32, bf16, fp16");
    says(made({.loss_scale = {64, 0}}), "loss_scale is of precision=\"fp16\"; it is \"fp32\" here");
    says(made({.precision = "fp16", .loss_scale = {3, 1}}), "loss_scale=3: expected a power of two from 2^-24 to 2^24");
    says(made({.clip = 1, .clipping = "global", .precision = "fp16"}),
         "precision=\"fp16\": the norm of all stages some steps ago may be of a step that was left out; expected "
         "clipping=\"local\" or \"proportional\"");
    says(made({.order = "ready", .precision = "fp16"}),
         "order=\"ready\": stages do not tell each other of gradients that are too large; expected bf16");
    says(made({.clip = 1, .clipping = "globall"}), "did you mean global?");
    says(made({.replicas = 3}), "replicas=3: expected a divisor of the group's 2 ranks");
    says(made({.schedule = "1f1b", .order = "ready"}), "order=\"ready\": 1f1b has one order; expected async_1f1b");
    says(made({.staleness = "spike", .order = "ready"}), "order=\"ready\": spike reckons with the plan's mean");
    says(made({.order = "ready", .replicas = 2}), "order=\"ready\" is of one pipeline; expected replicas=1");
    says(made({.order = "ready", .clip = 1, .clipping = "global"}), "norms; expected clipping=\"local\"");
    // No limit, whoever would have looked at the norm.
    Pipeline unlimited(ranks, cut(mlp(), 2), mse, sgd, {.schedule = "1f1b", .clipping = "global"});
    unlimited.run(data(3, 16));
    require(furthest(in_one_process(mlp(), data(3, 16)), unlimited.state()) < 1e-12, "clip=0 limits nothing");
    says(made({.placement = {0, 0}}), "2 stages on ranks [0, 0] leave some of the pipeline's 2 ranks without a stage");
    says(made({}, [](auto parameters) { return std::make_unique<torch::optim::LBFGS>(parameters); }), "LBFGS");
    says(made({},
              [](auto parameters) {
                return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1).amsgrad(true));
              }),
         "amsgrad is not supported in a pipeline");
    says(made({}, [](auto) { return sgd({at::zeros({2}).set_requires_grad(true)}); }), "took others");
    says(made({}, [](auto parameters) { return sgd({parameters.at(0)}); }), "the optimizer leaves out \"");
    says(made({.clip = std::nan("")}), "clip=nan: expected a number from 0 on");
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

TEST(CppPipeline, a_ledger_that_cannot_be_written_is_refused_on_all_ranks_before_anything_runs) {
  on_ranks(2, [&](const auto& ranks) {
    std::string said = refusal([&] {
      Pipeline(ranks, cut(mlp(), 2), mse, sgd, {.schedule = "1f1b", .micro_batches = 4, .ledger = "/nowhere/a.ledger"});
    });
    require(said.find("/nowhere/a.ledger") != std::string::npos, said);
  });
}

// --- modules that somebody changes between runs

TEST(CppPipeline, parameters_that_were_frozen_or_taken_since_are_noticed) {
  on_ranks(2, [&](const auto& ranks) {
    auto says = [](const std::string& said, const std::string& expected) {
      require(said.find(expected) != std::string::npos, expected + " is in: " + said);
    };
    auto model = mlp();
    Pipeline one(ranks, cut(model, 2), mse, sgd, {.micro_batches = 4});
    one.run(data(1, 12));
    for (const auto& layer : model->children()) {
      for (at::Tensor& parameter : layer->parameters()) parameter.requires_grad_(false);
    }
    says(refusal<std::exception>([&] { one.run(data(1, 12)); }), "has been frozen since the pipeline was made");
    for (const auto& layer : model->children()) {
      for (at::Tensor& parameter : layer->parameters()) parameter.requires_grad_(true);
    }
    Pipeline other(ranks, cut(model, 2), mse, sgd, {.micro_batches = 4});
    says(refusal<std::exception>([&] { one.run(data(1, 12)); }), "has got other memory since the pipeline was made");
    other.run(data(1, 12));
  });
}

TEST(CppPipeline, layers_left_in_evaluation_stay_so) {
  on_ranks(2, [&](const auto& ranks) {
    auto model = mlp();
    model[0]->eval();
    Pipeline pipe(ranks, cut(model, 2), mse, sgd, {.schedule = "1f1b", .micro_batches = 4});
    auto modes = [&] {
      std::vector<bool> found;
      for (const auto& layer : model->children()) found.push_back(layer->is_training());
      return found;
    };
    const std::vector<bool> before = modes();
    pipe.run(data(1, 12));
    require(modes() == before, "a run leaves them");
    pipe.evaluate(data(1, 12));
    require(modes() == before, "so does an evaluation");
    for (const auto& layer : model->children()) layer->eval();
    pipe.run(data(1, 12));
    require(modes() == std::vector<bool>(model->size(), true), "where all evaluate, all train");
  });
}

}  // namespace ddip::pipeline
