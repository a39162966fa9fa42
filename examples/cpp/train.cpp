// Data parallel training in C++:  ddip run -n 2 -- ./train
#include <ddip/ddip.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto context = ddip::Context::from_environment();
  torch::manual_seed(context.rank());
  ddip::DataParallel model(
      context, torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1)));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 100; ++step) {
    auto x = torch::randn({16, 8});
    auto loss = torch::mse_loss(model.forward(x), x.sum(1, true));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 20 == 0 && context.rank() == 0)
      std::cout << "step " << step << " loss " << loss.item<float>() << std::endl;
  }
  std::cout << "rank " << context.rank() << " of " << context.world_size() << ": weights "
            << model->parameters()[0].sum().item<double>() << std::endl;
}
