#include "ddip/models/unet/settings.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/checkpoint/strict_json.h"

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
}

}  // namespace

std::string Settings::json() const {
  nlohmann::ordered_json text;
  text["data"] = data.string();
  each(*this, [&](const char* name, const auto& value) { text[name] = value; });
  return text.dump(2) + "\n";
}

Settings Settings::from_json(const std::string& text) {
  try {
    const nlohmann::json parsed = checkpoint::parse_strict_json(text, kDeepest);
    Settings settings;
    settings.data = parsed.at("data").get<std::string>();
    each(settings, [&](const char* name, auto& value) { parsed.at(name).get_to(value); });
    return settings;
  } catch (const checkpoint::NotJson& error) {
    throw ConfigError(error.what());
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("these are no settings of a run: {}", error.what()));
  }
}

}  // namespace ddip::models::unet
