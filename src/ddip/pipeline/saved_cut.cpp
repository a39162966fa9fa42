#include "ddip/pipeline/saved_cut.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/checkpoint/store.h"

namespace ddip::pipeline {
namespace {

using nlohmann::json;

std::string beginnings(const json& stages) {
  std::vector<std::string> found;
  for (const json& layers : stages) found.push_back(layers.at(0).get<std::string>());
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace

std::vector<std::vector<std::string>> saved_stages(const std::filesystem::path& folder) {
  const std::optional<checkpoint::Manifest> last = checkpoint::Store(folder).last();
  if (!last) throw ConfigError(fmt::format("{}: no pipeline is saved there", folder.string()));
  try {
    return json::parse(last->about).at("layers").get<std::vector<std::vector<std::string>>>();
  } catch (const json::exception&) {
    throw ConfigError(
        fmt::format("{}: no pipeline is saved there whose stages were cut from a model", folder.string()));
  }
}

json layers_of(const std::vector<Part>& parts) {
  json found = json::array();
  for (const Part& part : parts) {
    if (part.layers.empty()) return nullptr;
    found.push_back(part.layers);
  }
  return found;
}

void require_same_cut(const json& saved, const json& here) {
  if (saved.is_null() || here.is_null() || saved.size() != here.size() || saved == here) return;
  throw ConfigError(fmt::format(
      "it was cut elsewhere, into stages that begin with {}, here with {}; cut(model, saved_stages(folder)), with the "
      "placement of then, cuts it as that one",
      beginnings(saved), beginnings(here)));
}

}  // namespace ddip::pipeline
