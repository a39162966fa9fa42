#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ddip/models/unet/baselines.h"
#include "ddip/models/unet/evaluation.h"
#include "trained.h"

namespace ddip::torch_app {

using launch::Takes;
using models::unet::Scores;

launch::FlagTable evaluate_flags() {
  return {"ddip unet evaluate",
          "how good a trained network is, beside what anybody could do without it",
          "--run RUN --data DIR [flags]",
          {{"",
            {{"--run", "", Takes::Value, "RUN", "the folder of a training run; its best checkpoint is used"},
             {"--data", "", Takes::Value, "DIR", "events; of those it was trained with, the held-out ones only"},
             {"--device", "", Takes::Value, "auto|cpu|cuda", "auto: a GPU if there is one"},
             {"--json", "", Takes::Nothing, "", "for programs"}}}},
          {"ddip unet evaluate --run run --data events"}};
}

namespace {

nlohmann::ordered_json described(const Scores& scores) {
  return {{"pixel_accuracy", scores.pixel_accuracy()},
          {"nonzero_accuracy", scores.nonzero_accuracy()},
          {"iou", {{"background", scores.iou(0)}, {"shower", scores.iou(1)}, {"track", scores.iou(2)}}}};
}

void print_row(const std::string& name, const Scores& scores) {
  fmt::print("{:<16} {:>17.4f} {:>15.5f} {:>11.4f} {:>10.4f}\n", name, scores.nonzero_accuracy(),
             scores.pixel_accuracy(), scores.iou(1), scores.iou(2));
}

}  // namespace

int unet_evaluate(const launch::Flags& flags) {
  share_cores(1);
  const Trained trained = load_trained(flags);
  const Events events = events_for(trained, flags);
  const auto baselines = models::unet::Baselines::load(trained.folder.baselines());
  std::map<std::string, Scores> others;
  const auto loader = in_order(events, trained.folder.settings());
  const auto evaluation =
      models::unet::evaluate(*trained.network, *loader, trained.device, trained.folder.settings().precision,
                             [&](const models::unet::Predicted& batch) {
                               for (const auto& [name, predicted] : baselines.predict(batch.images))
                                 others.try_emplace(name, models::unet::kClasses)
                                     .first->second.add(predicted, batch.labels, batch.images.select(1, 0) > 0);
                             });
  if (flags.has("--json")) {
    nlohmann::ordered_json answer = {{"events", evaluation.samples},
                                     {"held_out", events.held_out},
                                     {"step", trained.step},
                                     {"loss", evaluation.loss()}};
    answer.update(described(evaluation.scores));
    for (const auto& [name, scores] : others) answer["baselines"][name] = described(scores);
    fmt::print("{}\n", answer.dump(2));
    return 0;
  }
  fmt::print("{} events{}, loss {:.4f}, checkpoint of step {}\n\n", evaluation.samples,
             events.held_out ? " that were held out of training" : "", evaluation.loss(), trained.step);
  fmt::print("{:<16} {:>17} {:>15} {:>11} {:>10}\n", "", "non-zero accuracy", "pixel accuracy", "IoU shower",
             "IoU track");
  print_row("U-Net", evaluation.scores);
  for (const auto& [name, scores] : others) print_row(name, scores);
  return 0;
}

}  // namespace ddip::torch_app
