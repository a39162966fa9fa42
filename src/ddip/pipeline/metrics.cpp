#include "ddip/pipeline/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ddip/base/error.h"

namespace ddip::pipeline {

using nlohmann::json;

void Measured::add(const Value& output, const Value& target, int64_t samples) {
  for (const auto& [name, metric] : metrics_) {
    const Loss found = metric(output, target, samples);
    if (!(found.count >= 0 && std::isfinite(found.count)))
      throw ConfigError(
          fmt::format("the metric {:?} counts {}; expected a number from 0 on, of what it sums", name, found.count));
    Sum& sum = sums_[name];
    if (found.count == 0) continue;
    sum.sum += found.sum.item<double>();
    sum.count += found.count;
  }
}

std::vector<std::string> Measured::names() const {
  std::vector<std::string> found;
  for (const auto& [name, metric] : metrics_) found.push_back(name);
  return found;
}

json Measured::share() const {
  json found = json::object();
  for (const auto& [name, metric] : metrics_) {
    const auto sum = sums_.find(name);
    found[name] = sum == sums_.end() ? json{0.0, 0.0} : json{sum->second.sum, sum->second.count};
  }
  return found;
}

std::map<std::string, double> Measured::means(const std::vector<json>& shares) {
  std::map<std::string, Sum> sums;
  for (const json& share : shares) {
    for (const auto& [name, one] : share.items()) {
      sums[name].sum += one[0].get<double>();
      sums[name].count += one[1].get<double>();
    }
  }
  std::map<std::string, double> found;
  for (const auto& [name, one] : sums)
    found[name] = one.count > 0 ? one.sum / one.count : std::numeric_limits<double>::quiet_NaN();
  return found;
}

}  // namespace ddip::pipeline
