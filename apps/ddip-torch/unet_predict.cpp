#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/data/event_picture.h"
#include "ddip/data/npy_file.h"
#include "ddip/models/unet/evaluation.h"
#include "trained.h"

namespace ddip::torch_app {

using launch::Takes;
namespace fs = std::filesystem;

launch::FlagTable predict_flags() {
  return {"ddip unet predict",
          "masks for all events, and pictures of some: energies, truth if it is known, prediction",
          "--run RUN --data DIR --out DIR [flags]",
          {{"",
            {{"--run", "", Takes::Value, "RUN", "the folder of a training run; its best checkpoint is used"},
             {"--data", "", Takes::Value, "DIR",
              "events, with labels or without; of those it was trained with, the held-out ones only"},
             {"--out", "", Takes::Value, "DIR", "a new folder for masks.npy and the pictures"},
             {"--pictures", "", Takes::Value, "N", "how many (default 8)"},
             {"--device", "", Takes::Value, "auto|cpu|cuda", "auto: a GPU if there is one"}}}},
          {"ddip unet predict --run run --data events --out predictions"}};
}

namespace {

// Energies, truth where it is known, prediction.
void draw(const fs::path& file, const models::unet::Predicted& batch, size_t place, bool with_truth) {
  const auto row = static_cast<int64_t>(place);
  const at::Tensor image = batch.images[row][0].contiguous(), labels = batch.labels[row].contiguous(),
                   predicted = batch.classes[row].contiguous();
  auto bytes = [](const at::Tensor& tensor) {
    return std::span(tensor.const_data_ptr<uint8_t>(), static_cast<size_t>(tensor.numel()));
  };
  data::EventPicture picture(with_truth ? 3 : 2, static_cast<int>(image.size(0)), static_cast<int>(image.size(1)));
  picture.energies(0, {image.const_data_ptr<float>(), static_cast<size_t>(image.numel())});
  if (with_truth) picture.classes(1, bytes(labels));
  picture.classes(with_truth ? 2 : 1, bytes(predicted));
  data::write_png(file, picture.picture());
}

}  // namespace

int unet_predict(const launch::Flags& flags) {
  share_cores(1);
  const uint64_t pictures = flags.has("--pictures")
                                ? launch::whole_number(flags.value("--pictures"), {"a number of pictures", 0, 100'000})
                                : 8;
  const fs::path out = needed(flags, "--out").text;
  const Trained trained = load_trained(flags);
  const Events events = events_for(trained, flags, data::Labels::optional);
  std::error_code error;
  if (fs::exists(out / "masks.npy", error))
    throw ConfigError(
        fmt::format("ddip unet predict --out {}: it has masks already; expected a new folder", out.string()));
  fs::create_directories(out, error);
  if (error) throw ConfigError(fmt::format("ddip unet predict --out {}: {}", out.string(), error.message()));
  const data::EventShape& shape = events.set->shape();
  data::NpyWriter masks(out / "masks.npy", {'u', 1}, {shape.height, shape.width});
  uint64_t drawn = 0;
  const auto loader = in_order(events, trained.folder.settings());
  models::unet::evaluate(*trained.network, *loader, trained.device, trained.folder.settings().precision,
                         [&](const models::unet::Predicted& batch) {
                           const at::Tensor rows = batch.classes.contiguous();
                           masks.write({static_cast<const std::byte*>(rows.const_data_ptr()), rows.nbytes()});
                           for (size_t place = 0; place < batch.samples.size() && drawn < pictures; ++place, ++drawn)
                             draw(out / fmt::format("event-{:06}.png", events.first + batch.samples[place]), batch,
                                  place, events.set->has_labels());
                         });
  masks.close();
  fmt::print("masks of {} events in {}; {} pictures beside it: energies, {}prediction (shower blue, track orange)\n",
             shape.events, (out / "masks.npy").string(), drawn, events.set->has_labels() ? "truth, " : "");
  return 0;
}

}  // namespace ddip::torch_app
