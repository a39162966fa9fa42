#include "ddip/pipeline/ledger_writer.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>

#include "ddip/base/error.h"
#include "ddip/base/file.h"
#include "ddip/pipeline/gather.h"
#include "ddip/pipeline/random.h"
#include "ddip/pipeline/tensor_hash.h"

namespace ddip::pipeline {
namespace {

using nlohmann::json;
using schedule::Kind;
using staleness::Rule;

// The true weights, frozen ones too, in the module's order.
std::string hash_of_stage(const Part& part, const Weights& weights) {
  std::vector<at::Tensor> all;
  size_t trained = 0;
  for (const auto& [name, tensor] : parameters_of(part))
    all.push_back(tensor.requires_grad() ? weights.masters()[trained++] : tensor);
  return hash_of(all);
}

json described(const Part& part, const Weights& weights, const Stepping& stepping) {
  std::map<const at::TensorImpl*, std::string> names;
  const std::vector<NamedTensor> trained = trained_in(part);
  for (size_t i = 0; i < trained.size(); ++i) names[weights.masters()[i].unsafeGetTensorImpl()] = trained[i].name;
  json groups = json::array();
  for (const auto& given : stepping.optimizer().param_groups()) {
    const staleness::Group group = group_of(stepping.rule(), given);
    json said{{"parameters", json::array()}, {"weight_decay", group.weight_decay}, {"maximize", false}};
    for (const at::Tensor& parameter : given.params())
      said["parameters"].push_back(names.at(parameter.unsafeGetTensorImpl()));
    if (stepping.rule() == Rule::sgd) {
      said["momentum"] = group.momentum;
      said["dampening"] = group.dampening;
      said["nesterov"] = group.nesterov;
    } else {
      said["betas"] = {group.beta1, group.beta2};
      said["eps"] = group.eps;
    }
    groups.push_back(std::move(said));
  }
  // libtorch's Adam of C++ adds up its first moment in another order than Python's.
  const char* form = stepping.rule() == Rule::sgd ? "torch" : "libtorch";
  return {{"name", staleness::name_of(stepping.rule())}, {"form", form}, {"groups", groups}};
}

// JSON has neither NaN nor infinity.
json or_null(double number) { return std::isfinite(number) ? json(number) : json(); }

// Whole numbers as such: most counts are samples.
json plain(double count) {
  return count == std::floor(count) && count < 1e15 ? json(static_cast<int64_t>(count)) : json(count);
}

json first_of_each(const std::vector<std::vector<double>>& rates) {
  json found = json::array();
  for (const auto& one : rates) found.push_back({one.at(0)});
  return found;
}

}  // namespace

LedgerWriter::LedgerWriter(const Settings& settings, const std::vector<Part>& parts,
                           std::shared_ptr<tensors::Communicator> ranks)
    : settings_(settings), parts_(parts), ranks_(std::move(ranks)) {}

void LedgerWriter::watch(int stage, const Part& part, const Weights& weights, Stepping& stepping) {
  if (stepping.rule() == Rule::other)
    throw ConfigError("a ledger knows SGD, Adam and AdamW: of another optimizer it could not be computed again");
  Watched& watched = stages_[stage];
  watched = {.part = &part, .weights = &weights, .stepping = &stepping, .initial = hash_of_stage(part, weights)};
  watched.newest = watched.initial;
  stepping.on_step = [&watched] { watched.gradient = hash_of(watched.weights->gradients().places()); };
  stepping.on_stepped = [&watched] {
    watched.steps.push_back({{"rates", watched.stepping->last_rates()},
                             {"sha256", hash_of_stage(*watched.part, *watched.weights)},
                             {"gradient", watched.gradient}});
  };
}

void LedgerWriter::watch(int stage, const Part& part) {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : parameters_of(part)) all.push_back(tensor);
  stages_[stage].initial = hash_of(all);
}

void LedgerWriter::run_begins() {
  if (told_.is_null()) told_ = told();
}

json LedgerWriter::told() const {
  json found{{"threads", at::get_num_threads()}, {"optimizers", json::array()}};
  for (const auto& [index, stage] : stages_) {
    if (stage.stepping) found["optimizers"].push_back(described(*stage.part, *stage.weights, *stage.stepping));
  }
  return found;
}

std::string LedgerWriter::add(const Record& record, int64_t first) {
  for (const json& changed : gather_json(*ranks_, told() != told_)) {
    if (changed.get<bool>())
      return "a run with other options of an optimizer than its rate, or another number of threads";
  }
  std::map<int64_t, double> losses;
  for (const auto& [micro_batch, sum, count] : record.losses.all()) losses[micro_batch] = sum;
  int64_t micro_batches = first;
  json lines = json::array();
  for (const json& line : begins(record, first)) {
    micro_batches = std::max(micro_batches, first + line["planned"].get<int64_t>());
    lines.push_back(line.dump());
  }
  for (auto& [index, stage] : stages_) stage.empty.clear();
  for (const Done& done : record.actions()) {
    if (json line = line_of(done, first, losses); !line.is_null()) lines.push_back(line.dump());
  }
  const std::string why = publish(lines, micro_batches);
  return why.empty() ? "" : fmt::format("a run that could not be written: {}", why);
}

void LedgerWriter::begin() {
  if (const std::string why = publish(json::array(), 0); !why.empty())
    throw ConfigError(fmt::format("ledger: {}", why));
}

std::string LedgerWriter::publish(const json& lines, int64_t micro_batches) {
  json mine{{"lines", lines}, {"about", json::array()}, {"micro_batches", micro_batches}};
  for (const auto& [index, stage] : stages_) mine["about"].push_back({index, about(stage)});
  std::map<int, json> everything;
  for (const json& theirs : gather_json(*ranks_, mine)) {
    for (const json& line : theirs["lines"]) lines_.push_back(line);
    for (const json& one : theirs["about"]) everything[one[0]] = one[1];
    micro_batches = std::max(micro_batches, theirs["micro_batches"].get<int64_t>());
  }
  json failure = "";
  if (ranks_->rank() == 0) {
    try {
      write(everything, micro_batches);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  } else {
    lines_.clear();
  }
  return gather_json(*ranks_, failure)[0];
}

std::vector<json> LedgerWriter::begins(const Record& record, int64_t first) const {
  struct Planned {
    int64_t forwards = 0, staleness = 0;
  };
  std::map<int, Planned> planned;
  for (const Done& done : record.actions()) {
    if (done.action.kind != Kind::forward || !stages_.contains(done.action.stage)) continue;
    ++planned[done.action.stage].forwards;
    planned[done.action.stage].staleness += done.action.staleness;
  }
  std::vector<json> lines;
  for (const auto& [index, of] : planned) {
    lines.push_back({{"kind", "run"},
                     {"stage", index},
                     {"micro_batch", first},
                     {"planned", of.forwards},
                     {"mean_staleness", static_cast<double>(of.staleness) / static_cast<double>(of.forwards)}});
  }
  return lines;
}

void LedgerWriter::end() {
  ended_ = true;
  for (auto& [index, stage] : stages_) {
    if (stage.stepping) stage.stepping->on_step = stage.stepping->on_stepped = nullptr;
  }
}

json LedgerWriter::line_of(const Done& done, int64_t first, const std::map<int64_t, double>& losses) {
  const int index = done.action.stage;
  const int64_t micro_batch = first + done.action.micro_batch;
  if (!stages_.contains(index)) return nullptr;
  Watched& stage = stages_.at(index);
  if (done.action.kind == Kind::forward) {
    if (done.count == 0) {
      stage.empty.insert(done.action.micro_batch);
      return nullptr;
    }
    json line{{"kind", "forward"},
              {"stage", index},
              {"micro_batch", micro_batch},
              {"count", static_cast<int64_t>(done.count)},
              {"weights", seen(stage, index, done.used, first)},
              {"buffers", stage.forwards++},
              {"seed", seed_of(settings_.options.seed, index, micro_batch)}};
    stage.staleness += done.used.staleness;
    if (index == settings_.request.stages - 1) {
      line["loss"] = or_null(losses.at(done.action.micro_batch));
    }
    return line;
  }
  if (stage.empty.contains(done.action.micro_batch) && done.action.kind != Kind::step) return nullptr;
  if (done.action.kind == Kind::backward) {
    json line{{"kind", "backward"},
              {"stage", index},
              {"micro_batch", micro_batch},
              {"weights", seen_back(stage, index, done.read)},
              {"recomputed", settings_.recomputes(index)}};
    if (done.split) line["split"] = true;
    if (settings_.scales_loss()) line["loss_scale"] = done.loss_scale;
    return line;
  }
  if (done.action.kind == Kind::weight_gradient && done.split)
    return {{"kind", "weight_gradient"}, {"stage", index}, {"micro_batch", micro_batch}};
  const bool steps = done.action.kind == Kind::step && stage.stepping;
  return steps ? line_of_step(stage, index, done.stepped, first) : json();
}

json LedgerWriter::line_of_step(Watched& stage, int index, const Versions::Stepped& stepped, int64_t first) const {
  json together = json::array();
  for (int64_t one : stepped.micro_batches) together.push_back(first + one);
  json line{{"kind", "step"},
            {"stage", index},
            {"step", ++stage.versions},
            {"count", plain(stepped.count)},
            {"micro_batches", together}};
  if (stepped.left_out) line["left_out"] = true;
  if (settings_.options.clipping == "global" && !stepped.left_out) line["norm"] = or_null(stepped.norm);
  if (stepped.count == 0 || stepped.left_out) {  // the optimizer was not asked
    line.update({{"rates", json::array()}, {"sha256", stage.newest}});
    return line;
  }
  line.update(stage.steps.front());
  stage.steps.pop_front();
  stage.newest = line["sha256"];
  const auto share = static_cast<int>(stepped.micro_batches.size());
  if (!settings_.synchronous() && share < settings_.options.accumulate)
    line["share"] = {share, settings_.options.accumulate};
  return line;
}

json LedgerWriter::seen(Watched& stage, int index, const Used& used, int64_t first) const {
  if (!stage.stepping) return {{"kind", "true"}, {"version", 0}};
  if (!used.predicted) {
    json found{{"kind", "true"}, {"version", used.version}};
    // 2bw reads a version that is old already, so that n says more than the steps to come.
    if (settings_.options.schedule != "2bw") found["n"] = used.staleness;
    return found;
  }
  if (settings_.options.smoothing.radius > 0) return {{"kind", "perturbed"}, {"version", used.version}};
  const auto rates = stage.stepping->by_group(used.rates);
  json found{{"kind", "predicted"}, {"version", used.version}};
  if (has("spectrain")) {
    found["distance"] = distance(index, false);
    found["rates"] = first_of_each(rates);
  } else {
    found["n"] = used.staleness;
    found["rates"] = rates;
  }
  if (has("aggmsnag")) {
    found["partial"] = json::array();
    for (int64_t one : used.pending) found["partial"].push_back(first + one);
  }
  return found;
}

json LedgerWriter::seen_back(Watched& stage, int index, const ReadBack& read) const {
  if (!stage.stepping) return {{"kind", "true"}, {"version", 0}};
  if (read.from == ReadBack::From::forward) return json::object({{"kind", "forward"}});
  if (read.from == ReadBack::From::truth) return {{"kind", "true"}, {"version", read.version}};
  if (has("pipemare")) return {{"kind", "corrected"}, {"version", read.version}};
  return {{"kind", "predicted"},
          {"version", read.version},
          {"distance", distance(index, true)},
          {"rates", first_of_each(stage.stepping->by_group(read.rates))}};
}

int LedgerWriter::distance(int stage, bool backward) const {
  const int far = stage / 2 + (backward ? 0 : settings_.request.stages - stage - 1);
  return (far + settings_.options.accumulate - 1) / settings_.options.accumulate;
}

json LedgerWriter::about(const Watched& stage) const {
  const double mean =
      stage.forwards > 0 ? static_cast<double>(stage.staleness) / static_cast<double>(stage.forwards) : 0;
  return {{"initial", stage.initial},
          {"optimizer", stage.stepping ? described(*stage.part, *stage.weights, *stage.stepping)
                                       : json{{"name", "sgd"}, {"groups", json::array()}}},
          {"mean_staleness", mean}};
}

void LedgerWriter::write(const std::map<int, json>& about, int64_t micro_batches) const {
  json header{{"kind", "header"},
              {"format", 1},
              {"stages", settings_.request.stages},
              {"schedule", settings_.options.schedule},
              {"staleness", settings_.policy()},
              {"options", settings_.policy_options()},
              {"micro_batches", micro_batches},
              {"split", settings_.options.micro_batches},
              {"accumulate", settings_.synchronous() ? settings_.options.accumulate * settings_.per_batch()
                                                     : settings_.options.accumulate},
              {"optimizer", json::array()},
              {"clip", settings_.options.clip > 0 ? json(settings_.options.clip) : json()},
              {"precision", settings_.options.precision},
              {"order", settings_.options.order},
              {"mean_staleness", json::array()},
              {"threads", at::get_num_threads()},
              {"torch", TORCH_VERSION},
              {"capability", at::get_cpu_capability()},
              {"seed", settings_.options.seed},
              {"program", settings_.options.program.empty() ? json() : json(settings_.options.program)},
              {"initial", json::array()}};
  if (settings_.options.clip > 0) {
    header["clipping"] = settings_.options.clipping;
    header["norm_delay"] = settings_.norm_delay;
  }
  if (settings_.scales_loss()) {
    const auto& [initial, interval] = settings_.options.loss_scale;
    header["loss_scale"] = {{"initial", initial}, {"interval", interval}};
    header["norm_delay"] = settings_.norm_delay;
  }
  if (const auto& [passes, radius] = settings_.options.smoothing; radius > 0)
    header["smoothing"] = {{"passes", passes}, {"radius", radius}};
  // Of stages of a graph; the others are a chain.
  if (std::ranges::none_of(parts_, [](const Part& one) { return one.gives.empty(); })) {
    for (const Part& part : parts_) {
      header["takes"].push_back(part.takes);
      header["gives"].push_back(part.gives);
    }
  }
  for (const auto& [index, stage] : about) {
    for (const char* key : {"optimizer", "mean_staleness", "initial"}) header[key].push_back(stage.at(key));
  }
  std::string text = header.dump() + "\n";
  for (const std::string& line : lines_) text += line + "\n";
  NewFile file(settings_.options.ledger);
  file.write(std::as_bytes(std::span(text)), 0);
  file.publish();
}

}  // namespace ddip::pipeline
