#include "ddip/pipeline/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "ddip/schedule/checker.h"
#include "ddip/schedule/counts.h"
#include "ddip/schedule/window.h"
#include "ddip/staleness/matrix.h"

namespace ddip::pipeline {
namespace {

void require_one_of(const char* option, const std::string& value, const std::vector<std::string>& names) {
  if (std::ranges::find(names, value) == names.end())
    throw ConfigError(fmt::format("{}={:?}: expected one of {}{}", option, value, fmt::join(names, ", "),
                                  did_you_mean(value, names)));
}

void require_smoothing(const PipelineOptions& options) {
  const auto& [passes, radius] = options.smoothing;
  if (passes == 1 && radius == 0) return;  // off
  if (passes < 1 || passes > 1024 || !(radius > 0 && radius <= 1e3))
    throw ConfigError(fmt::format(
        "smoothing: passes={}, radius={}: expected from 1 to 1024 passes and a radius above 0, at most 1000", passes,
        radius));
  const auto& names = schedule::schedule_names();
  if (std::ranges::find(names, options.schedule) != names.end() && !schedule::is_synchronous(options.schedule))
    throw ConfigError(
        fmt::format("smoothing fills the bubbles of synchronous schedules, and {} has none; expected gpipe, 1f1b, …",
                    options.schedule));
  if (options.staleness != "auto" && options.staleness != "none")
    throw ConfigError(
        fmt::format("smoothing with staleness={:?}: where nothing is stale, expected none", options.staleness));
}

void require_values(const PipelineOptions& options, int world) {
  if (options.replicas < 1 || world % options.replicas != 0)
    throw ConfigError(fmt::format("replicas={}: expected a divisor of the group's {} ranks", options.replicas, world));
  if (!(options.clip >= 0)) throw ConfigError(fmt::format("clip={}: expected a number from 0 on", options.clip));
  require_one_of("clipping", options.clipping, {"auto", "local", "proportional", "global"});
  require_one_of("precision", options.precision, {"fp32", "bf16", "fp16"});
  static_cast<void>(LossScale(options.loss_scale));  // says what is wrong with it
  if (options.precision != "fp16" && options.loss_scale != LossScale::Options())
    throw ConfigError(fmt::format("loss_scale is of precision=\"fp16\"; it is {:?} here", options.precision));
  if (options.micro_batches < 1 || options.accumulate < 1)
    throw ConfigError(fmt::format("micro_batches={}, accumulate={}: expected numbers from 1 on", options.micro_batches,
                                  options.accumulate));
  require_smoothing(options);
  const auto& [annealing_steps, decay] = options.staleness_options.pipemare;
  const auto& [gap_decay, gap_eps] = options.staleness_options.gap;
  if (annealing_steps < 0 || !(decay > 0 && decay <= 1))
    throw ConfigError(
        fmt::format("annealing_steps={}, pipemare_decay={}: expected a number from 0 on and one above 0, "
                    "at most 1",
                    annealing_steps, decay));
  if (!(gap_decay >= 0 && gap_decay < 1) || !(gap_eps > 0 && gap_eps <= 1))
    throw ConfigError(
        fmt::format("gap_decay={}, gap_eps={}: expected a number from 0 on, below 1, and one above 0, at "
                    "most 1",
                    gap_decay, gap_eps));
  if (options.order == "ready" && options.replicas > 1)
    throw ConfigError("order=\"ready\" is of one pipeline; expected replicas=1");
  if (!options.ledger.empty() && options.replicas > 1)
    throw ConfigError("ledger is of one pipeline; expected replicas=1");
}

void complete_places(PipelineOptions& options, size_t stages, int width) {
  if (options.placement.empty()) {
    for (size_t stage = 0; stage < stages; ++stage) options.placement.push_back(static_cast<int>(stage) % width);
  }
  const std::set<int> used(options.placement.begin(), options.placement.end());
  const bool all = static_cast<int>(used.size()) == width && *used.begin() == 0 && *used.rbegin() == width - 1;
  if (!all || options.placement.size() != stages)
    throw ConfigError(fmt::format("{} stages on ranks [{}] leave some of the pipeline's {} ranks without a stage",
                                  stages, fmt::join(options.placement, ", "), width));
  if (options.edges.empty()) options.edges = schedule::chain_of(static_cast<int>(stages));
}

// Also looks whether schedule, policy and optimizer go together.
// `parameters`: some stage's, to see what is made of them.
void choose_policy(Settings& settings, const MakeOptimizer& make, const std::vector<at::Tensor>& parameters) {
  std::unique_ptr<torch::optim::Optimizer> example;
  if (make) example = make(parameters);
  if (!example) throw ConfigError("the function that makes a stage's optimizer gave none");
  const staleness::Rule rule = rule_of(*example);
  std::string& name = settings.options.staleness;
  if (name == "auto") {
    name = settings.is_stale() ? staleness::auto_policy(rule) : "none";
    // Adam's squares of complex weights are of another kind than its predictions know.
    const bool any_complex = std::ranges::any_of(parameters, [](const at::Tensor& one) { return one.is_complex(); });
    if (any_complex && staleness::is_adaptive(rule) && name != "none") name = "stash";
    // 2bw and paci say by themselves which weights are read.
    if (staleness::schedule_takes(settings.options.schedule, name).fit == staleness::Fit::refused) name = "none";
  }
  staleness::Optimizer described{.rule = rule};
  for (const auto& group : example->param_groups()) described.groups.push_back(group_of(rule, group));
  for (const auto& [fit, why] :
       {staleness::schedule_takes(settings.options.schedule, name), staleness::optimizer_takes(described, name)}) {
    if (fit == staleness::Fit::refused) throw ConfigError(fmt::format("staleness={:?}: {}", name, why));
    if (!why.empty()) settings.notes.push_back(fmt::format("staleness={:?}: {}", name, why));
  }
  if (settings.options.schedule == "2bw") name = "stash";  // its backwards read what their forwards did
  const staleness::Needs needs = staleness::make_policy(name, settings.options.staleness_options)->needs({});
  settings.request.needs = {
      .predicts = needs.forward_weights, .stashes = needs.stash, .perturbs = settings.options.smoothing.radius > 0};
}

// What only a pipeline knows of it; the rest is schedule's.
void require_order(const Settings& settings) {
  const PipelineOptions& options = settings.options;
  if (options.order != "ready") return;
  for (const char* policy : {"pipemare", "spike"}) {
    if (settings.has_policy(policy))
      throw ConfigError(fmt::format(
          "order=\"ready\": {} reckons with the plan's mean staleness; expected another policy, or order=\"plan\"",
          policy));
  }
  if (options.clipping == "global")
    throw ConfigError("order=\"ready\": stages do not wait for each other's norms; expected clipping=\"local\"");
  if (settings.scales_loss())
    throw ConfigError("order=\"ready\": stages do not tell each other of gradients that are too large; expected bf16");
}

void require_clipping(const Settings& settings) {
  if (settings.scales_loss() && settings.options.clipping == "global" && !settings.synchronous())
    throw ConfigError(
        "precision=\"fp16\": the norm of all stages some steps ago may be of a step that was left out; expected "
        "clipping=\"local\" or \"proportional\"");
}

// paci is left alone: it must not run ahead more than one step. The order of the others is fixed.
bool widens(const PipelineOptions& options) {
  static const std::set<std::string> names = {"1f1b", "async_1f1b", "virtual_async", "2bw"};
  return !options.costs.stages.empty() && names.contains(options.schedule);
}

}  // namespace

bool Settings::is_stale(int stage) const {
  return stage < 0 ? std::ranges::max(most_stale) > 0 : most_stale.at(static_cast<size_t>(stage)) > 0;
}

schedule::Plan Settings::plan_of(int64_t batches, int64_t done) const {
  schedule::Request asked = request;
  asked.batches = batches;
  asked.warmup = std::max<int64_t>(0, asked.warmup - done);
  if (asked.switch_at >= 0) asked.switch_at = std::max<int64_t>(0, asked.switch_at - done);
  schedule::Plan made = schedule::make_plan(asked);
  if (const schedule::Verdict verdict = schedule::check(made); !verdict.ok())
    throw ConfigError(fmt::format("the plan is refused: {}", verdict.error));
  return made;
}

nlohmann::json Settings::policy_options() const {
  const auto& [second_decays, pipemare, gap] = options.staleness_options;
  nlohmann::json found = nlohmann::json::object();
  if (second_decays && has_policy("adam")) found["second_decays"] = true;
  if (has_policy("pipemare"))
    found.update({{"annealing_steps", pipemare.annealing_steps}, {"pipemare_decay", pipemare.decay}});
  if (has_policy("gap_aware")) found.update({{"gap_decay", gap.decay}, {"gap_eps", gap.eps}});
  return found;
}

std::string Settings::fingerprint() const {
  std::vector<std::pair<int, int>> edges;
  for (const auto& [from, to] : request.edges) edges.emplace_back(from, to);
  std::vector<double> costs = request.costs.links;
  for (const auto& [forward, backward, weight_gradient, step, predict] : request.costs.stages)
    costs.insert(costs.end(), {forward, backward, weight_gradient, step, predict});
  return nlohmann::json{request.schedule,
                        request.stages,
                        request.rank_of_stage,
                        edges,
                        request.window,
                        request.micro_batches,
                        request.accumulate,
                        request.max_staleness,
                        request.warmup,
                        request.flush_every,
                        request.switch_at,
                        options.staleness,
                        options.seed,
                        options.precision,
                        options.replicas,
                        options.clipping,
                        options.clip,
                        options.recompute,
                        policy_options(),
                        options.gaps,
                        options.order,
                        options.loss_scale.initial,
                        options.loss_scale.interval,
                        options.smoothing.passes,
                        options.smoothing.radius,
                        costs}
      .dump();
}

Settings decided(PipelineOptions asked, size_t stages, int rank, int world, const MakeOptimizer& make,
                 const std::vector<at::Tensor>& parameters) {
  require_values(asked, world);
  const int width = world / asked.replicas;
  complete_places(asked, stages, width);
  Settings settings{.options = std::move(asked), .width = width, .replica = rank / width, .place = rank % width};
  PipelineOptions& options = settings.options;
  settings.request = {.schedule = options.schedule,
                      .stages = static_cast<int>(stages),
                      .rank_of_stage = options.placement,
                      .edges = options.edges,
                      .micro_batches = settings.per_batch(),
                      .accumulate = options.accumulate,
                      .window = options.window,
                      .max_staleness = options.max_staleness,
                      .warmup = options.warmup,
                      .flush_every = options.flush_every,
                      .switch_at = options.switch_at,
                      .order = options.order,
                      .costs = options.costs};
  if (options.window.empty() && widens(options))
    settings.request.window = options.window = schedule::default_window(settings.request);
  // Long enough that its last steps are like those of any longer run, and as many messages are under way.
  int64_t ahead = options.window.empty() ? static_cast<int64_t>(stages) : std::ranges::max(options.window);
  ahead = std::min<int64_t>(ahead, 4096);  // nobody has memory for more
  const int64_t needed = std::max(3 * int64_t{options.accumulate}, 2 * (ahead + 1));
  const int64_t enough = std::max<int64_t>(8, needed / std::max(settings.per_batch(), 1) + 1);
  settings.plan = settings.plan_of(enough + options.warmup + std::max<int64_t>(options.switch_at, 0));
  settings.notes = settings.plan.notes;
  settings.most_stale = schedule::most_staleness(settings.plan);
  if (options.clip == 0) options.clipping = "local";
  if (options.clipping == "auto") options.clipping = settings.synchronous() ? "global" : "local";
  settings.norm_delay = settings.synchronous() ? 0 : 1 + std::ranges::max(settings.most_stale);
  choose_policy(settings, make, parameters);
  require_order(settings);
  require_clipping(settings);
  if (options.precision != "fp32" && settings.is_stale() && !settings.request.needs.stashes && !options.recompute) {
    options.recompute = true;
    settings.notes.emplace_back("recompute=true: under autocast a kept graph would use the weights of its forward");
  }
  return settings;
}

}  // namespace ddip::pipeline
