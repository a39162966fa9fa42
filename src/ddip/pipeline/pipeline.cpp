#include "ddip/pipeline/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ddip/base/error.h"
#include "ddip/pipeline/autocast.h"
#include "ddip/pipeline/evaluation.h"
#include "ddip/pipeline/executor.h"
#include "ddip/pipeline/ledger_writer.h"
#include "ddip/schedule/checker.h"
#include "ddip/staleness/make_policy.h"
#include "ddip/staleness/matrix.h"

namespace ddip {

using namespace pipeline;  // NOLINT(google-build-using-namespace): this is its front
using nlohmann::json;

struct Pipeline::Inside {
  Inside(std::shared_ptr<Communicator> ranks, std::vector<Part> model, LossFunction loss, const MakeOptimizer& make,
         Options options);

  // --- what is run
  schedule::Plan plan_of(int64_t batches) const;
  Report run(const Batches& batches, bool training);
  void require_agreement(int64_t batches, bool training);
  std::string fingerprint() const;
  NamedTensors state();

  // --- making
  void require_placement();
  bool is_stale(
      int stage = -1) const;  // a forward of this stage, or of any, reads weights that are old at its backward
  std::string chosen_policy(const MakeOptimizer& make);
  void decide_recomputation();
  pipeline::Stage make_stage(int index, const MakeOptimizer& make);
  std::shared_ptr<Versions> make_versions(int index, const MakeOptimizer& make);
  void open_ledger();

  const std::shared_ptr<Communicator> ranks;
  const std::vector<Part> parts;
  const LossFunction loss;
  Options options;
  schedule::Request request;
  schedule::Plan plan;
  std::vector<std::string> notes;
  std::string policy;
  std::map<int, std::unique_ptr<Stepping>> steppings;  // of this rank's stages that train
  std::map<int, std::shared_ptr<Versions>> versions;
  std::vector<int> mine;
  std::unique_ptr<LedgerWriter> ledger;
  std::unique_ptr<Executor> executor;
  int64_t micro_batches_done = 0;  // in earlier runs
  // of one run
  std::unique_ptr<MicroBatchReader> source;
  std::function<const MicroBatch&(int64_t)> inputs, targets;
};

namespace {

Value to_device(const Value& value, at::Device device) {
  return with_tensors(value, [&](const at::Tensor& tensor) { return tensor.to(device); });
}

Sample sample_of(const MicroBatch& found) { return {found.x, found.samples}; }

int last_of(const std::vector<Part>& parts) { return static_cast<int>(parts.size()) - 1; }

}  // namespace

// --- making

Pipeline::Inside::Inside(std::shared_ptr<Communicator> all_ranks, std::vector<Part> model, LossFunction loss_function,
                         const MakeOptimizer& make, Options asked)
    : ranks(std::move(all_ranks)), parts(std::move(model)), loss(std::move(loss_function)), options(std::move(asked)) {
  if (ranks->name() == "nccl")
    throw ConfigError("backend nccl: a pipeline's messages go through the CPU; expected shm or mpi");
  require_placement();
  if (options.precision != "fp32" && options.precision != "bf16")
    throw ConfigError(fmt::format("precision={:?}: expected fp32 or bf16", options.precision));
  if (options.micro_batches < 1 || options.accumulate < 1)
    throw ConfigError(fmt::format("micro_batches={}, accumulate={}: expected numbers from 1 on", options.micro_batches,
                                  options.accumulate));
  if (!make) throw ConfigError("a pipeline without a function that makes its optimizers");
  refuse_tied(parts);
  request = {.schedule = options.schedule,
             .stages = static_cast<int>(parts.size()),
             .rank_of_stage = options.placement,
             .edges = options.edges.empty() ? chain_of(parts.size()) : options.edges,
             .micro_batches = options.micro_batches,
             .accumulate = options.accumulate,
             .window = options.window,
             .max_staleness = options.max_staleness,
             .warmup = options.warmup,
             .flush_every = options.flush_every,
             .switch_at = options.switch_at};
  // Long enough to show what every batch of a longer run will be like.
  plan = plan_of(8 + options.warmup + std::max<int64_t>(options.switch_at, 0));
  notes = plan.notes;
  policy = chosen_policy(make);
  decide_recomputation();
  std::vector<pipeline::Stage> stages;
  for (int index = 0; index <= last_of(parts); ++index) {
    if (request.rank_of_stage[static_cast<size_t>(index)] != ranks->rank()) continue;
    mine.push_back(index);
    stages.push_back(make_stage(index, make));
  }
  if (!options.ledger.empty()) open_ledger();
  std::vector<int> frames;
  for (int capacity : plan.capacity) frames.push_back(std::max(2, capacity));
  executor = std::make_unique<Executor>(ranks, std::move(stages), request.edges, request.rank_of_stage, frames, [] {});
}

void Pipeline::Inside::require_placement() {
  if (options.placement.empty()) {
    for (size_t stage = 0; stage < parts.size(); ++stage)
      options.placement.push_back(static_cast<int>(stage) % ranks->world());
  }
  const std::set<int> used(options.placement.begin(), options.placement.end());
  const bool all =
      static_cast<int>(used.size()) == ranks->world() && *used.begin() == 0 && *used.rbegin() == ranks->world() - 1;
  if (!all || options.placement.size() != parts.size())
    throw ConfigError(fmt::format("{} stages on ranks [{}] leave some of the group's {} ranks without a stage",
                                  parts.size(), fmt::join(options.placement, ", "), ranks->world()));
}

bool Pipeline::Inside::is_stale(int stage) const {
  for (const auto& actions : plan.ranks) {
    for (const schedule::Action& action : actions)
      if (action.staleness > 0 && (stage < 0 || action.stage == stage)) return true;
  }
  return false;
}

// Also looks whether schedule, policy and optimizer go together.
std::string Pipeline::Inside::chosen_policy(const MakeOptimizer& make) {
  auto example = make({at::zeros({1}).set_requires_grad(true)});
  if (!example) throw ConfigError("the function that makes a stage's optimizer gave none");
  const staleness::Rule rule = rule_of(*example);
  std::string name = options.staleness;
  if (name == "auto") name = is_stale() ? staleness::auto_policy(rule) : "none";
  staleness::Optimizer described{.rule = rule};
  for (const auto& group : example->param_groups()) described.groups.push_back(group_of(rule, group));
  for (const auto& [fit, why] :
       {staleness::schedule_takes(options.schedule, name), staleness::optimizer_takes(described, name)}) {
    if (fit == staleness::Fit::refused) throw ConfigError(fmt::format("staleness={:?}: {}", name, why));
    if (!why.empty()) notes.push_back(fmt::format("staleness={:?}: {}", name, why));
  }
  const staleness::Needs needs = staleness::make_policy(name)->needs({});
  request.needs = {.predicts = needs.forward_weights, .stashes = needs.stash};
  return name;
}

void Pipeline::Inside::decide_recomputation() {
  if (options.precision == "fp32" || !is_stale() || request.needs.stashes || options.recompute) return;
  options.recompute = true;
  notes.emplace_back("recompute=true: under autocast a kept graph would use the weights of its forward");
}

std::shared_ptr<Versions> Pipeline::Inside::make_versions(int index, const MakeOptimizer& make) {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : trained_in(parts[static_cast<size_t>(index)])) {
    names.push_back(name);
    parameters.push_back(tensor);
  }
  if (parameters.empty()) return nullptr;
  const bool apart = is_stale(index) || policy.find("spectrain") != std::string::npos;
  auto weights = std::make_shared<Weights>(parameters, names, apart);
  auto& stepping = steppings[index] = std::make_unique<Stepping>(weights, make, options.scheduler);
  return versions[index] = std::make_shared<Versions>(weights, staleness::make_policy(policy), stepping->asks(), index,
                                                      request.stages);
}

pipeline::Stage Pipeline::Inside::make_stage(int index, const MakeOptimizer& make) {
  const Part& part = parts[static_cast<size_t>(index)];
  const bool last = index == last_of(parts);
  pipeline::Stage stage;
  stage.index = index;
  stage.name = fmt::format("stage {} ({})", index, part.name);
  for (size_t edge = 0; edge < request.edges.size(); ++edge) {
    if (request.edges[edge].to == index) stage.incoming.push_back(static_cast<int>(edge));
    if (request.edges[edge].from == index) stage.outgoing.push_back(static_cast<int>(edge));
  }
  stage.versions = make_versions(index, make);
  if (stage.versions) stage.device = stage.versions->weights().truth().device();
  stage.recompute = options.recompute && !last;
  stage.clip = options.clip;
  const bool mixed = options.precision == "bf16";
  stage.forward = [&part, mixed, device = stage.device,
                   outgoing = stage.outgoing.size()](const std::vector<Value>& given) {
    Autocast autocast(mixed, device);
    return run_part(part, given, outgoing);
  };
  stage.auxiliary_losses = part.auxiliary_losses;
  if (part.module) stage.buffers = [module = part.module] { return module->buffers(); };
  if (index == 0)
    stage.input = [this](int64_t micro_batch) { return sample_of(inputs(micro_batch)); };
  else if (last)
    stage.input = [this](int64_t micro_batch) { return sample_of(targets(micro_batch)); };
  if (last) {
    stage.loss = [this, mixed, device = stage.device](const std::vector<Value>& outputs, int64_t micro_batch,
                                                      int64_t samples) {
      Autocast autocast(mixed, device);
      return loss(outputs.at(0), to_device(targets(micro_batch).y, device), samples);
    };
  }
  return stage;
}

void Pipeline::Inside::open_ledger() {
  if (!options.edges.empty() && options.edges != chain_of(parts.size()))
    throw ConfigError("ledger: only of stages that lie behind one another, in C++; expected no edges of your own");
  ledger = std::make_unique<LedgerWriter>(options.ledger,
                                          LedgerFacts{.schedule = options.schedule,
                                                      .staleness = policy,
                                                      .precision = options.precision,
                                                      .stages = request.stages,
                                                      .micro_batches = options.micro_batches,
                                                      .accumulate = options.accumulate,
                                                      .synchronous = schedule::is_synchronous(options.schedule),
                                                      .clip = options.clip,
                                                      .seed = options.seed,
                                                      .program = options.program},
                                          ranks);
  for (auto& [index, stepping] : steppings)
    ledger->watch(index, parts[static_cast<size_t>(index)], versions.at(index)->weights(), *stepping,
                  options.recompute && index != last_of(parts));
}

// --- what is run

schedule::Plan Pipeline::Inside::plan_of(int64_t batches) const {
  schedule::Request asked = request;
  asked.batches = batches;
  schedule::Plan made = schedule::make_plan(asked);
  if (const schedule::Verdict verdict = schedule::check(made); !verdict.ok())
    throw ConfigError(fmt::format("the plan is refused: {}", verdict.error));
  return made;
}

// Of all that the ranks must have alike.
std::string Pipeline::Inside::fingerprint() const {
  std::vector<std::pair<int, int>> edges;
  for (const auto& [from, to] : request.edges) edges.emplace_back(from, to);
  return json{request.schedule, request.stages,        request.rank_of_stage, edges,
              request.window,   request.micro_batches, request.accumulate,    request.max_staleness,
              request.warmup,   request.flush_every,   request.switch_at,     policy,
              options.seed,     options.precision}
      .dump();
}

void Pipeline::Inside::require_agreement(int64_t batches, bool training) {
  const json said{batches, fingerprint(), training};
  const std::vector<json> all = gather_json(*ranks, said);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == said) continue;
    const std::string what = all[rank][0] == said[0]
                                 ? std::string("another pipeline")
                                 : fmt::format("{} batches, here {}", all[rank][0].get<int64_t>(), batches);
    throw ConfigError(
        fmt::format("rank {} runs {}: every rank must run the same pipeline on as many batches", rank, what));
  }
}

Report Pipeline::Inside::run(const Batches& batches, bool training) {
  require_agreement(batches.size(), training);
  if (batches.size() == 0) return {};
  source = std::make_unique<MicroBatchReader>(batches, options.micro_batches);
  if (mine.front() == 0) inputs = source->place();
  if (mine.back() == last_of(parts)) targets = source->place();
  for (int index : mine) {
    if (const auto& module = parts[static_cast<size_t>(index)].module) module->train(training);
  }
  if (training) plan = plan_of(batches.size());
  const auto rank = static_cast<size_t>(ranks->rank());
  Record record =
      executor->run(training ? plan.ranks.at(rank)
                             : forwards_only(request.edges, request.rank_of_stage, ranks->rank(), source->size()),
                    {.training = training,
                     .seed = options.seed,
                     .first_micro_batch = training ? micro_batches_done : 0,
                     .step_size = schedule::is_synchronous(request.schedule) ? 0 : options.accumulate});
  if (training && ledger) ledger->add(record, micro_batches_done);
  if (training) micro_batches_done += source->size();
  std::vector<StageTimes> times;
  for (int index : mine)
    times.push_back(times_of(record, index, ranks->rank(), versions.contains(index) ? versions.at(index)->kept() : 0));
  return joined(gather_json(*ranks, share_of(record, times, ranks->rank())), batches.size(), options.micro_batches);
}

NamedTensors Pipeline::Inside::state() {
  NamedTensors found;
  for (int index : mine) {
    const Part& part = parts[static_cast<size_t>(index)];
    if (!part.module) continue;
    if (versions.contains(index)) versions.at(index)->settle();
    const std::string prefix = part.prefix.value_or(fmt::format("{}.", index));
    for (const auto& item : part.module->named_parameters()) found[prefix + item.key()] = item.value();
    for (const auto& item : part.module->named_buffers()) found[prefix + item.key()] = item.value();
  }
  return gather_tensors(*ranks, found);
}

// --- the door

Pipeline::Pipeline(std::shared_ptr<Communicator> ranks, std::vector<Part> model, LossFunction loss,
                   MakeOptimizer optimizer, Options options)
    : inside_(std::make_unique<Inside>(std::move(ranks), std::move(model), std::move(loss), optimizer,
                                       std::move(options))) {}

Pipeline::Pipeline(Context& context, std::vector<Part> model, LossFunction loss, MakeOptimizer optimizer,
                   Options options)
    : Pipeline(context.communicator(), std::move(model), std::move(loss), std::move(optimizer), std::move(options)) {}

Pipeline::~Pipeline() = default;

Report Pipeline::run(const Batches& batches) { return inside_->run(batches, true); }
Report Pipeline::evaluate(const Batches& batches) { return inside_->run(batches, false); }
NamedTensors Pipeline::state() { return inside_->state(); }
const std::string& Pipeline::staleness() const { return inside_->policy; }
const std::vector<std::string>& Pipeline::notes() const { return inside_->notes; }
const schedule::Plan& Pipeline::plan() const { return inside_->plan; }
std::vector<int> Pipeline::stages() const { return inside_->mine; }

torch::optim::Optimizer* Pipeline::optimizer(int stage) {
  auto found = inside_->steppings.find(stage);
  return found == inside_->steppings.end() ? nullptr : &found->second->optimizer();
}

}  // namespace ddip
