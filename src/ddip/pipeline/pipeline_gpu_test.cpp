// Pipelines of C++ whose stages share a GPU, on ranks of their own, each beside one process of plain libtorch there.
// The test's own process must not ask CUDA for anything: a child of its could not use the GPU any more.
#include "ddip/pipeline/testing/folder.h"
#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {
namespace {

bool gpu_is_there() {
  const pid_t asking = ::fork();
  if (asking == 0) ::_exit(torch::cuda::is_available() ? 0 : 1);
  int status = 0;
  ::waitpid(asking, &status, 0);
  return status == 0;
}

torch::nn::Sequential on_gpu(torch::nn::Sequential model) {
  model->to(at::kCUDA);
  return model;
}

Pairs on_gpu(const Pairs& batches) {
  Pairs found;
  for (const auto& [x, y] : batches) found.emplace_back(x.cuda(), y.cuda());
  return found;
}

State on_cpu(const State& state) {
  State found;
  for (const auto& [name, tensor] : state) found[name] = tensor.cpu();
  return found;
}

torch::nn::Sequential noisy() {
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.3),
                              torch::nn::Linear(8, 3)};
  model->to(at::kDouble);
  return on_gpu(model);
}

class CppPipelineOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_is_there()) GTEST_SKIP() << "no GPU here";
  }
};

}  // namespace

TEST_F(CppPipelineOnGpu, synchronous_schedules_train_like_one_process) {
  for (const char* schedule : {"gpipe", "1f1b", "zb1"}) {
    for (bool samples_are_there : {false, true}) {
      on_ranks(2, [&](const auto& ranks) {
        const Pairs batches = data(5, 12, 7);
        Pipeline pipe(ranks, cut(on_gpu(mlp()), 2), mse, sgd, {.schedule = schedule, .micro_batches = 4});
        require(pipe.optimizer(ranks->rank())->param_groups().at(0).params().at(0).is_cuda(), "it trains on the GPU");
        pipe.run(samples_are_there ? on_gpu(batches) : batches);
        const State expected = on_cpu(in_one_process(on_gpu(mlp()), on_gpu(batches)));
        require(furthest(expected, state_of(*mlp())) > 1e-3, "the training went somewhere");
        const double off = furthest(expected, pipe.state());
        require(off < 1e-12, fmt::format("{} is off by {}", schedule, off));
      });
    }
  }
}

// What these give on the CPU is computed again in Python, bit for bit: tests/test_pipeline_cpp.py.
TEST_F(CppPipelineOnGpu, asynchronous_runs_end_where_they_do_on_the_cpu) {
  const MakeOptimizer adam = [](auto parameters) { return std::make_unique<torch::optim::Adam>(parameters, 0.01); };
  for (const auto& [policy, make] :
       std::map<std::string, MakeOptimizer>{{"stash", sgd}, {"msnag", sgd}, {"aggmsnag", sgd}, {"adam", adam}}) {
    on_ranks(2, [&](const auto& ranks) {
      const Pairs batches = data(6, 12);
      const PipelineOptions options{
          .schedule = "async_1f1b", .staleness = policy, .micro_batches = 4, .window = {3, 0}};
      Pipeline there(ranks, cut(on_gpu(mlp()), 2), mse, make, options);
      Pipeline here(ranks, cut(mlp(), 2), mse, make, options);
      there.run(batches);
      here.run(batches);
      require(furthest(here.state(), in_one_process(mlp(), batches, make)) > 1e-3, "it is no synchronous run");
      const double off = furthest(here.state(), there.state());
      require(off < 1e-11, fmt::format("{} is off by {}", policy, off));
    });
  }
}

TEST_F(CppPipelineOnGpu, recomputation_draws_the_same_numbers_and_counts_batch_norm_once) {
  on_ranks(2, [&](const auto& ranks) {
    std::vector<State> ends;
    for (const auto& [recompute, seed] : std::vector<std::pair<bool, uint64_t>>{{false, 1}, {true, 1}, {true, 2}}) {
      Pipeline pipe(ranks, cut(noisy(), 2), mse, sgd,
                    {.schedule = "1f1b", .micro_batches = 4, .recompute = recompute, .seed = seed});
      pipe.run(data(4, 12));
      ends.push_back(pipe.state());
    }
    require(furthest(ends[0], ends[1]) == 0, "the same bits with and without");
    require(furthest(ends[1], ends[2]) > 1e-4, "there is dropout");
  });
}

TEST_F(CppPipelineOnGpu, a_loaded_run_goes_on_as_one_that_drained_there) {
  const Folder folder;
  on_ranks(2, [&](const auto& ranks) {
    const Pairs batches = data(6, 12);
    auto made = [&] {
      return std::make_unique<Pipeline>(ranks, cut(on_gpu(mlp()), 2), mse, sgd,
                                        PipelineOptions{.schedule = "async_1f1b", .staleness = "msnag"});
    };
    auto whole = made(), before = made(), after = made();
    whole->run(Pairs(batches.begin(), batches.begin() + 3));
    whole->run(Pairs(batches.begin() + 3, batches.end()));
    before->run(Pairs(batches.begin(), batches.begin() + 3));
    before->save(folder.path());
    after->load(folder.path());
    require(furthest(before->state(), after->state()) == 0, "what was saved is loaded");
    after->run(Pairs(batches.begin() + 3, batches.end()));
    require(furthest(before->state(), after->state()) > 1e-3, "it trains on");
    require(furthest(whole->state(), after->state()) == 0, "and ends with the same bits");
  });
}

}  // namespace ddip::pipeline
