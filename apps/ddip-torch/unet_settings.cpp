#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <functional>

#include "ddip/base/error.h"
#include "ddip/base/file.h"
#include "ddip/base/nearest_name.h"
#include "ddip/base/strict_json.h"
#include "unet.h"

namespace ddip::torch_app {
namespace {

using launch::FlagText;
using launch::Takes;
using models::unet::Settings;
using nlohmann::json;

constexpr uint64_t kLongestConfig = 1 << 20;
constexpr int kDeepest = 4;

double real_number(const FlagText& flag, const std::string& what, double least, double most) {
  double value = 0;
  const char* end = flag.text.data() + flag.text.size();
  const auto [stop, error] = std::from_chars(flag.text.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value) || value < least || value > most)
    launch::refuse(flag, fmt::format("expected {} from {} to {}", what, least, most));
  return value;
}

struct Setting {
  std::string name;  // in a file; with -- in front, and - for _, the flag
  std::string value_name;
  std::string help;
  bool number;
  std::function<void(Settings&, const FlagText&)> set;

  std::string flag() const {
    std::string text = "--" + name;
    std::replace(text.begin(), text.end(), '_', '-');
    return text;
  }
};

Setting whole(const std::string& name, const std::string& value_name, const std::string& help,
              const launch::WholeNumber& expected, int64_t Settings::* member) {
  return {name, value_name, help, true, [=](Settings& settings, const FlagText& flag) {
            settings.*member = static_cast<int64_t>(launch::whole_number(flag, expected));
          }};
}

Setting choice(const std::string& name, const std::string& help, const std::vector<std::string>& choices,
               std::string Settings::* member) {
  std::string names;
  for (const std::string& one : choices) names += (names.empty() ? "" : "|") + one;
  return {name, names, help, false,
          [=](Settings& settings, const FlagText& flag) { settings.*member = launch::one_of(flag, choices); }};
}

const std::vector<Setting>& table() {
  static const std::vector<Setting> all = {
      whole("epochs", "E", "times through all events (default 10)", {"a number of epochs", 1, 100'000},
            &Settings::epochs),
      whole("batch", "B", "events in a step of each rank (default 8)", {"a number of events", 1, 65'536},
            &Settings::batch),
      whole("width", "W", "channels of the first level (default 64)", {"a number of channels", 1, 1024},
            &Settings::width),
      whole("depth", "D", "levels beside the bridge (default 4)", {"a number of levels", 1, 8}, &Settings::depth),
      {"lr", "R", "highest learning rate (default 0.001)", true,
       [](Settings& settings, const FlagText& flag) { settings.lr = real_number(flag, "a rate", 1e-12, 100); }},
      {"seed", "S", "the same seed gives the same run (default 0)", true,
       [](Settings& settings, const FlagText& flag) {
         settings.seed = launch::whole_number(flag, {"a seed", 0, INT64_MAX});
       }},
      choice("precision", "what convolutions compute in (default fp32)", {"fp32", "bf16"}, &Settings::precision),
      choice("compress", "of gradients between ranks (default none)",
             {"none", "fp16", "bf16", "int8", "topk", "powersgd"}, &Settings::compress),
      choice("device", "auto: a GPU if there is one", {"auto", "cpu", "cuda"}, &Settings::device),
      {"hold_out", "SHARE", "of the events, the last ones, to test on (default 0.1)", true,
       [](Settings& settings, const FlagText& flag) { settings.hold_out = real_number(flag, "a share", 0, 0.9); }},
      whole("patience", "E", "stop after so many epochs without a better accuracy (default: never)",
            {"a number of epochs", 0, 100'000}, &Settings::patience),
      whole("readers", "N", "threads that read ahead (default 2)", {"a number of threads", 1, 256},
            &Settings::readers)};
  return all;
}

void apply_config(const std::filesystem::path& path, Settings& settings) {
  json parsed;
  try {
    parsed = parse_strict_json(read_small_file(path, kLongestConfig), kDeepest);
  } catch (const NotJson& error) {
    throw ConfigError(fmt::format("{}: {}", path.string(), error.what()));
  }
  if (!parsed.is_object()) throw ConfigError(fmt::format("{}: expected a table: {{\"epochs\": 3}}", path.string()));
  std::vector<std::string> names;
  for (const Setting& setting : table()) names.push_back(setting.name);
  for (const auto& [key, value] : parsed.items()) {
    const auto found =
        std::find_if(table().begin(), table().end(), [&](const Setting& one) { return one.name == key; });
    const std::string place = fmt::format("{}, {}", path.string(), launch::shown(key));
    if (found == table().end()) {
      const std::string near = did_you_mean(key, names);
      throw ConfigError(fmt::format("{}: there is no such setting{}", place, near));
    }
    if (found->number != value.is_number())
      throw ConfigError(fmt::format("{}: {} is no {}", place, value.dump(), found->number ? "number" : "text"));
    found->set(settings, {place + ": " + value.dump(), found->number ? value.dump() : value.get<std::string>()});
  }
}

}  // namespace

std::vector<launch::Flag> setting_flags() {
  std::vector<launch::Flag> flags;
  for (const Setting& setting : table())
    flags.push_back({setting.flag(), "", Takes::Value, setting.value_name, setting.help});
  return flags;
}

Settings settings_of(const launch::Flags& flags, Settings settings) {
  if (flags.has("--config")) apply_config(flags.value("--config").text, settings);
  for (const Setting& setting : table()) {
    if (flags.has(setting.flag())) setting.set(settings, flags.value(setting.flag()));
  }
  return settings;
}

}  // namespace ddip::torch_app
