// A small U-Net, its decoder beside its encoder, so that no skip crosses a link:  ddip run -n 2 -- ./branches
#include <ddip/ddip.h>
#include <torch/torch.h>

#include <iostream>

namespace nn = torch::nn;

nn::Sequential convolution(int in, int out, int stride = 1) {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1)), nn::LeakyReLU());
}

// What comes from below, made as large as what comes from beside it, and both together.
struct UpImpl : nn::Module {
  nn::Conv2d join{nullptr};
  UpImpl(int in, int out) { join = register_module("join", nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1))); }
  at::Tensor forward(const at::Tensor& deep, const at::Tensor& skip) {
    const auto size = std::vector<int64_t>{skip.size(2), skip.size(3)};
    return join(torch::cat({torch::upsample_nearest2d(deep, size), skip}, 1));
  }
};
TORCH_MODULE(Up);

int main() {
  auto context = ddip::Context::from_environment();
  at::set_num_threads(1);
  torch::manual_seed(0);  // every rank begins with the same weights
  ddip::pipeline::Graph net;
  auto image = net.input();
  auto down0 = net.add("down0", convolution(1, 8), {image});
  auto down1 = net.add("down1", convolution(8, 16, 2), {down0});
  auto bridge = net.add("bridge", convolution(16, 16, 2), {down1});
  auto up1 = net.add("up1", Up(32, 8), {bridge, down1});
  net.add("up0", Up(16, 1), {up1, down0});

  const ddip::pipeline::Value example{torch::randn({8, 1, 32, 32})};  // one micro-batch
  auto model = ddip::pipeline::measured_cut(*context.communicator(), net, example,
                                            {.placement = context.world_size() > 1 ? "mirrored" : "single"});
  ddip::Pipeline pipe(
      context, model.parts, [](const at::Tensor& output, const at::Tensor& y) { return torch::mse_loss(output, y); },
      [](std::vector<at::Tensor> parameters) { return std::make_unique<torch::optim::Adam>(parameters, 0.002); },
      {.schedule = "1f1b",
       .micro_batches = 4,
       .window = model.window,
       .placement = model.placement,
       .edges = model.edges,
       .costs = model.costs});
  std::vector<ddip::Batch> batches;
  for (int batch = 0; batch < 60; ++batch) {
    auto x = torch::randn({32, 1, 32, 32});
    batches.emplace_back(x, torch::avg_pool2d(x, 3, 1, 1));
  }
  auto report = pipe.run(batches);
  if (context.rank() != 0) return 0;
  for (size_t stage = 0; stage < model.parts.size(); ++stage)
    std::cout << "stage " << stage << ", " << model.parts[stage].name << ", on rank "
              << pipe.plan().request.rank_of_stage[stage] << "\n";
  std::cout << report << "\nloss " << report.losses.front() << " -> " << report.losses.back() << std::endl;
}
