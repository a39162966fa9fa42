// The parts of `ddip unet`.
#pragma once

#include <string>
#include <vector>

#include "ddip/launch/flags.h"
#include "ddip/models/unet/run_folder.h"

namespace ddip::torch_app {

using Arguments = std::vector<std::string>;

// `ddip`: the program that starts several ranks.
int unet(const std::string& ddip, const Arguments& arguments);

int unet_train(const std::string& ddip, const launch::Flags& flags);
int unet_rank(const Arguments& arguments);  // what each rank of a training run executes
int unet_evaluate(const launch::Flags& flags);
int unet_predict(const launch::Flags& flags);

launch::FlagTable train_flags();
launch::FlagTable evaluate_flags();
launch::FlagTable predict_flags();

// The value of a flag that the command cannot do without.
launch::FlagText needed(const launch::Flags& flags, const std::string& flag);

// What flags and --config say, flags first; what neither says stays as it is in `settings`. Throws ConfigError.
models::unet::Settings settings_of(const launch::Flags& flags, models::unet::Settings settings);
// The flags behind settings_of, for a command's table.
std::vector<launch::Flag> setting_flags();

// Cores for each rank, unless the environment says how many threads.
void share_cores(int ranks);

}  // namespace ddip::torch_app
