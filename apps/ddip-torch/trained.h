// A network from a run's folder, and the events to use it on.
#pragma once

#include "ddip/data/loader.h"
#include "ddip/models/unet/network.h"
#include "unet.h"

namespace ddip::torch_app {

struct Trained {
  models::unet::RunFolder folder;
  uint64_t step;  // of the checkpoint
  std::shared_ptr<models::unet::Network> network;
  at::Device device;
};

// The best checkpoint of --run, on --device.
Trained load_trained(const launch::Flags& flags);

struct Events {
  std::shared_ptr<const data::EventSet> set;
  uint64_t first = 0;  // of the folder's events
  bool held_out = false;
};

// --data; of the folder that the run was trained on only the events that were held out.
Events events_for(const Trained& trained, const launch::Flags& flags, data::Labels labels = data::Labels::needed);

std::unique_ptr<data::Loader> in_order(const Events& events, const models::unet::Settings& settings);

}  // namespace ddip::torch_app
