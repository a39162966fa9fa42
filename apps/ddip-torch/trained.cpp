#include "trained.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/models/unet/device.h"
#include "ddip/models/unet/held_out.h"
#include "ddip/models/unet/load.h"

namespace ddip::torch_app {
namespace {

namespace fs = std::filesystem;

}  // namespace

Trained load_trained(const launch::Flags& flags) {
  auto folder = models::unet::RunFolder::open(needed(flags, "--run").text);
  const std::string where =
      flags.has("--device") ? launch::one_of(flags.value("--device"), {"auto", "cpu", "cuda"}) : "auto";
  const at::Device device = models::unet::device_of(where, 0);
  const models::unet::Loaded loaded = models::unet::load_best(folder);
  loaded.network->to(device);
  loaded.network->use_channels_last();
  return {std::move(folder), loaded.step, loaded.network, device};
}

Events events_for(const Trained& trained, const launch::Flags& flags, data::Labels labels) {
  const fs::path path = fs::absolute(needed(flags, "--data").text);
  Events events{data::open_events(path, labels)};
  const auto channels = static_cast<int64_t>(events.set->shape().channels);
  if (channels != trained.network->options().channels)
    throw ConfigError(fmt::format("{}: its images have {} channels, the network of {} was trained on {}", path.string(),
                                  channels, trained.folder.path().string(), trained.network->options().channels));
  std::error_code error;
  if (!fs::equivalent(path, trained.folder.settings().data, error) || error) return events;
  const uint64_t all = events.set->shape().events;
  models::unet::require_trainable(trained.folder.settings(), all);
  const uint64_t held = models::unet::events_held_out(all, trained.folder.settings().hold_out);
  return {data::range_of(events.set, all - held, held), all - held, true};
}

std::unique_ptr<data::Loader> in_order(const Events& events, const models::unet::Settings& settings) {
  data::LoaderOptions options;
  options.sampling = {.batch = static_cast<uint64_t>(settings.batch), .shuffle = false};
  options.threads = static_cast<int>(settings.readers);
  options.classes = models::unet::kClasses;
  return std::make_unique<data::Loader>(events.set, options);
}

}  // namespace ddip::torch_app
