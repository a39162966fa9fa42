#include "ddip/models/unet/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/base/strict_json.h"

namespace ddip::models::unet {
namespace {

constexpr int kDeepest = 4;

// Calls with(name, member) for each of them.
template <typename Of, typename With>
void each(Of& settings, const With& with) {
  with("epochs", settings.epochs);
  with("batch", settings.batch);
  with("width", settings.width);
  with("depth", settings.depth);
  with("lr", settings.lr);
  with("seed", settings.seed);
  with("precision", settings.precision);
  with("compress", settings.compress);
  with("device", settings.device);
  with("hold_out", settings.hold_out);
  with("patience", settings.patience);
  with("readers", settings.readers);
  with("events", settings.events);
}

// A file may have been edited; flags were checked when they were read.
void check(const Settings& settings) {
  auto require = [](bool good, const char* name) {
    if (!good) throw ConfigError(fmt::format("its {:?} makes no sense", std::string(name)));
  };
  auto one_of = [](const std::string& value, std::initializer_list<const char*> choices) {
    return std::any_of(choices.begin(), choices.end(), [&](const char* choice) { return value == choice; });
  };
  require(settings.epochs >= 1, "epochs");
  require(settings.batch >= 1 && settings.batch <= 65'536, "batch");
  require(settings.width >= 1 && settings.width <= 1024, "width");
  require(settings.depth >= 1 && settings.depth <= 8, "depth");
  require(settings.lr > 0 && settings.lr <= 100, "lr");
  require(settings.hold_out >= 0 && settings.hold_out <= 0.9, "hold_out");
  require(settings.patience >= 0, "patience");
  require(settings.readers >= 1 && settings.readers <= 256, "readers");
  require(one_of(settings.precision, {"fp32", "bf16"}), "precision");
  require(one_of(settings.device, {"auto", "cpu", "cuda"}), "device");
  require(one_of(settings.compress, {"none", "fp16", "bf16", "int8", "topk", "powersgd"}), "compress");
}

}  // namespace

std::string Settings::json() const {
  nlohmann::ordered_json text;
  text["data"] = data.string();
  each(*this, [&](const char* name, const auto& value) { text[name] = value; });
  return text.dump(2) + "\n";
}

std::string Settings::difference(const Settings& other) const {
  std::error_code error;
  if (data != other.data && !std::filesystem::equivalent(data, other.data, error))
    return fmt::format("data {} and {}", data.string(), other.data.string());
  const auto mine = nlohmann::json::parse(json()), others = nlohmann::json::parse(other.json());
  for (const auto& [name, value] : mine.items()) {
    if (name != "data" && value != others.at(name))
      return fmt::format("{} {} and {}", name, value.dump(), others.at(name).dump());
  }
  return "";
}

Settings Settings::from_json(const std::string& text) {
  try {
    const nlohmann::json parsed = parse_strict_json(text, kDeepest);
    Settings settings;
    settings.data = parsed.at("data").get<std::string>();
    each(settings, [&](const char* name, auto& value) { parsed.at(name).get_to(value); });
    check(settings);
    return settings;
  } catch (const NotJson& error) {
    throw ConfigError(error.what());
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("these are no settings of a run: {}", error.what()));
  }
}

}  // namespace ddip::models::unet
