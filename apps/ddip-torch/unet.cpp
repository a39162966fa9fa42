#include "unet.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "ddip/base/error.h"

namespace ddip::torch_app {

launch::FlagText needed(const launch::Flags& flags, const std::string& flag) {
  if (!flags.has(flag))
    throw ConfigError(fmt::format("{}: expected {}; {} -h lists the flags", flags.command(), flag, flags.command()));
  return flags.value(flag);
}

void share_cores(int ranks) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  at::set_num_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks));
}

int unet(const std::string& ddip, const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "-h" || arguments[0] == "--help") {
    const std::string text = fmt::format(
        "ddip unet: a U-Net that tells showers from tracks in detector images\n"
        "usage: ddip unet train|evaluate|predict [flags]\n\n"
        "  train     {}\n  evaluate  {}\n  predict   {}\n\nddip unet train -h lists the flags of one\n",
        train_flags().purpose, evaluate_flags().purpose, predict_flags().purpose);
    if (arguments.empty()) throw ConfigError("ddip unet: expected train, evaluate or predict; ddip unet -h explains");
    throw launch::HelpRequested{text};
  }
  const std::string& what = arguments[0];
  const Arguments rest(arguments.begin() + 1, arguments.end());
  if (what == "rank") return unet_rank(rest);
  launch::one_of({"ddip unet " + launch::shown(what), what}, {"train", "evaluate", "predict"});
  const launch::Flags flags(what == "train"      ? train_flags()
                            : what == "evaluate" ? evaluate_flags()
                                                 : predict_flags(),
                            rest);
  if (!flags.words().empty())
    throw ConfigError(fmt::format("ddip unet {}: one word too many: {}", what, launch::shown(flags.words()[0])));
  if (what == "train") return unet_train(ddip, flags);
  return what == "evaluate" ? unet_evaluate(flags) : unet_predict(flags);
}

}  // namespace ddip::torch_app
