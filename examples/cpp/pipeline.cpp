// A model in stages, one for each rank, trained without a wait between them:  ddip run -n 2 -- ./pipeline
// With a file's name it writes down what was done, and Python computes it again:  ddip replay FILE
#include <ddip/ddip.h>
#include <torch/torch.h>

#include <iostream>

int main(int argc, char** argv) {
  auto context = ddip::Context::from_environment();
  at::set_num_threads(1);
  torch::manual_seed(0);  // every rank begins with the same weights
  // Braces: of parentheses a compiler may make the last layer first, and Python's twin begins with the first.
  torch::nn::Sequential model{torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1)};
  ddip::PipelineOptions options{.schedule = "async_1f1b", .micro_batches = 4};
  if (argc > 1) options.ledger = argv[1], options.program = "pipeline.py:factory";
  ddip::Pipeline pipe(
      context, ddip::pipeline::cut(model, context.world_size()),
      [](const at::Tensor& output, const at::Tensor& y) { return torch::mse_loss(output, y); },
      [](std::vector<at::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.002).momentum(0.9));
      },
      options);
  std::vector<ddip::Batch> batches;  // on every rank the same: the first stage reads x, the last one y
  for (int batch = 0; batch < 200; ++batch) {
    auto x = torch::randn({32, 8});
    batches.emplace_back(x, x.sum(1, true));
  }
  auto report = pipe.run(batches);
  auto state = pipe.state();  // the newest weights of the whole model, on every rank
  if (context.rank() == 0)
    std::cout << report << "\nloss " << report.losses.front() << " -> " << report.losses.back() << ", staleness policy "
              << pipe.staleness() << ", weights " << state.at("0.weight").sum().item<double>() << std::endl;
}
