// Models and data that a pipeline of C++ and one process train alike.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include "ddip/pipeline/pipeline.h"
#include "ddip/pipeline/testing/processes.h"

namespace ddip::pipeline {

using Pairs = std::vector<std::pair<at::Tensor, at::Tensor>>;
using State = NamedTensors;

inline torch::nn::Sequential mlp(int hidden = 1, at::ScalarType type = at::kDouble) {
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
inline torch::nn::Sequential layers(torch::nn::Sequential model, int begin, int end) {
  torch::nn::Sequential found;
  for (auto layer = model->begin() + begin; layer != model->begin() + end; ++layer) found->push_back(*layer);
  return found;
}

inline Pairs data(int batches, int64_t size, int64_t last = 0, at::ScalarType type = at::kDouble) {
  torch::manual_seed(7);
  Pairs found;
  for (int batch = 0; batch < batches; ++batch) {
    int64_t samples = last > 0 && batch == batches - 1 ? last : size;
    at::Tensor x = torch::randn({samples, 6}, type);  // before y, also in a compiler that begins with the last argument
    found.emplace_back(x, torch::randn({samples, 3}, type));
  }
  return found;
}

inline at::Tensor mse(const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); }

inline std::unique_ptr<torch::optim::Optimizer> sgd(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
}

inline State state_of(const torch::nn::Module& module) {
  State found;
  for (const auto& item : module.named_parameters()) found[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) found[item.key()] = item.value().detach().clone();
  return found;
}

inline double furthest(const State& a, const State& b) {
  require(a.size() == b.size(), "as many tensors");
  double most = 0;
  for (const auto& [name, tensor] : a) {
    require(b.contains(name), name + " is there");
    most = std::max(most, (tensor - b.at(name)).abs().max().item<double>());
  }
  return most;
}

// Plain libtorch: one step for each `accumulate` batches, the mean over all their samples.
inline State in_one_process(torch::nn::Sequential model, const Pairs& batches, const MakeOptimizer& make = sgd,
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

// Two stages, between which a tuple passes.
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

inline std::pair<TwoOut, TwoIn> tuple_stages() {
  torch::manual_seed(3);
  std::pair<TwoOut, TwoIn> made{TwoOut(), TwoIn()};
  made.first->to(at::kDouble);
  made.second->to(at::kDouble);
  return made;
}

}  // namespace ddip::pipeline
