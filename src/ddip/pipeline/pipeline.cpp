#include "ddip/pipeline/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ddip/base/error.h"
#include "ddip/pipeline/after_failure.h"
#include "ddip/pipeline/autocast.h"
#include "ddip/pipeline/evaluation.h"
#include "ddip/pipeline/executor.h"
#include "ddip/pipeline/hidden_weights.h"
#include "ddip/pipeline/ledger_writer.h"
#include "ddip/pipeline/modes.h"
#include "ddip/pipeline/saved_cut.h"
#include "ddip/pipeline/saving.h"
#include "ddip/schedule/own_plan.h"
#include "ddip/staleness/make_policy.h"
#include "ddip/staleness/matrix.h"

namespace ddip {

using namespace pipeline;  // NOLINT(google-build-using-namespace): this is its front
using nlohmann::json;

struct Pipeline::Inside {
  Inside(std::shared_ptr<Communicator> ranks, std::vector<Part> model, LossFunction loss, const MakeOptimizer& make,
         Options asked);

  const Part& part(int stage) const { return parts[static_cast<size_t>(stage)]; }
  int last() const { return static_cast<int>(parts.size()) - 1; }

  // --- making
  pipeline::Stage make_stage(int index, const MakeOptimizer& make);
  // Where its tensors are; a stage that has none computes where others of this rank do, or of any.
  at::Device device_of(int index) const;
  std::shared_ptr<Versions> make_versions(int index, const MakeOptimizer& make);
  void make_executor(const MakeOptimizer& make);
  std::unique_ptr<Executor> connected(std::vector<pipeline::Stage> stages, const std::vector<int>& room) const;
  void open_ledger();

  // --- running
  Sample sample_of(const std::function<MicroBatch(int64_t)>& read, int64_t micro_batch) const;
  // `own`: a plan that somebody has made, or null.
  Report run(const Batches& batches, bool training, Metrics metrics, const schedule::Plan* own);
  schedule::Plan plan_of(int64_t batches) const;
  void take_plan(const schedule::Plan& own);
  Report report_of(const Record& record, int64_t batches, bool training) const;
  void add_metrics(Report& report) const;
  void make_equal_again();
  void add_note(const std::string& note);
  // Nothing from here on could be replayed.
  void end_ledger(const std::string& before);
  void require_agreement(int64_t batches, bool training, const std::string& plan);
  Record execute(bool training);
  NamedTensors state();
  RankOnDisk on_disk();

  const std::shared_ptr<Communicator> ranks;
  const std::vector<Part> parts;
  const LossFunction loss;
  Settings settings;
  std::vector<int> mine;                               // this rank's stages
  std::map<int, std::unique_ptr<Stepping>> steppings;  // of those that train
  std::map<int, std::shared_ptr<Versions>> versions;
  std::unique_ptr<LedgerWriter> ledger;
  Telling telling;
  std::vector<int> frames;  // by channel
  std::unique_ptr<Executor> executor;
  std::map<int, std::shared_ptr<Gaps>> gaps;
  DoneBefore done_before;  // in earlier runs
  bool whole = true;       // no run has failed since the replicas were equal
  // of one run
  std::unique_ptr<MicroBatchReader> source;
  std::function<MicroBatch(int64_t)> inputs, targets;
  std::vector<schedule::Action> evaluated, done;  // what the record of an evaluation, or of an order found, speaks of
  Measured measured;
};

namespace {

std::vector<std::shared_ptr<torch::nn::Module>> modules_of(const std::vector<Part>& parts) {
  std::vector<std::shared_ptr<torch::nn::Module>> found;
  for (const Part& part : parts) {
    if (part.module) found.push_back(part.module);
  }
  return found;
}

// One stage's, to see what kind of optimizer is made for them.
std::vector<at::Tensor> some_trained(const std::vector<Part>& parts) {
  std::vector<at::Tensor> found;
  for (const Part& part : parts) {
    for (const auto& [name, tensor] : trained_in(part)) found.push_back(tensor);
    if (!found.empty()) return found;
  }
  return {at::zeros({1}).set_requires_grad(true)};
}

std::vector<at::Tensor> tensors_in(const std::vector<Value>& values) {
  std::vector<at::Tensor> found;
  for (const Value& value : values) std::ranges::copy(tensors_of(value), std::back_inserter(found));
  return found;
}

std::shared_ptr<HiddenWeights> hidden_from(const std::vector<Part>& parts, int stage) {
  std::vector<at::Tensor> own;
  std::vector<std::pair<std::string, at::Tensor>> others;
  for (size_t other = 0; other < parts.size(); ++other) {
    for (const auto& [name, tensor] : parameters_of(parts[other])) {
      if (static_cast<int>(other) == stage)
        own.push_back(tensor);
      else
        others.emplace_back(fmt::format("{} of stage {}", name, other), tensor);
    }
  }
  return std::make_shared<HiddenWeights>(own, others);
}

[[noreturn]] void refuse_hidden(const std::string& stage, const HiddenWeights::Found& found) {
  if (!found.name.empty())
    throw ConfigError(fmt::format(
        "{} computes with {}, past its module, and would not train it: expected the weight in one stage, or "
        "lent to the other one as a value of a pipeline::Graph",
        stage, found.name));
  throw ConfigError(
      fmt::format("{} computes with a weight of {} elements that is in no stage's module, and would not train it: "
                  "expected Part(module, function), or a weight without requires_grad",
                  stage, found.elements));
}

// Stages whose gradients have each its share of the norm have the whole norm together.
double clip_share(const std::vector<Part>& parts, const Part& part) {
  int64_t all = 0;
  for (const Part& one : parts) all += trained_elements(one);
  return all > 0 ? std::sqrt(static_cast<double>(trained_elements(part)) / static_cast<double>(all)) : 1;
}

}  // namespace

// --- making

Pipeline::Inside::Inside(std::shared_ptr<Communicator> all_ranks, std::vector<Part> model, LossFunction loss_function,
                         const MakeOptimizer& make, Options asked)
    : ranks(std::move(all_ranks)),
      parts(std::move(model)),
      loss(std::move(loss_function)),
      settings(decided(std::move(asked), parts.size(), ranks->rank(), ranks->world(), make, some_trained(parts))) {
  require_messages(*ranks);
  refuse_tied(parts);
  require_edges_of_graph(parts, settings.request.edges);
  make_executor(make);
}

void Pipeline::Inside::make_executor(const MakeOptimizer& make) {
  std::vector<pipeline::Stage> stages;
  std::set<int> telling_ranks;
  for (int index = 0; index <= last(); ++index) {
    const int rank = settings.request.rank_of_stage[static_cast<size_t>(index)];
    if (settings.scales_loss() || trained_elements(part(index)) > 0) telling_ranks.insert(rank);
    if (rank == settings.place) mine.push_back(index);
  }
  agreed(*ranks, [&] {
    for (int index : mine) stages.push_back(make_stage(index, make));
    return json();
  });
  if (!settings.options.ledger.empty()) open_ledger();
  telling = {.global_norm = settings.options.clipping == "global",
             .delay = settings.norm_delay,
             .ranks = std::vector<int>(telling_ranks.begin(), telling_ranks.end())};
  if (settings.scales_loss()) telling.loss_scale = settings.options.loss_scale;
  for (int capacity : settings.plan.capacity) frames.push_back(std::max(2, capacity));
  executor = connected(std::move(stages), frames);
}

// `room`: by channel.
std::unique_ptr<Executor> Pipeline::Inside::connected(std::vector<pipeline::Stage> stages,
                                                      const std::vector<int>& room) const {
  Arrangement arrangement{.edges = settings.request.edges,
                          .rank_of_stage = settings.request.rank_of_stage,
                          .frames = room,
                          .width = settings.width,
                          .replicas = settings.options.replicas};
  return std::make_unique<Executor>(ranks, std::move(stages), std::move(arrangement), telling, [] {});
}

std::shared_ptr<Versions> Pipeline::Inside::make_versions(int index, const MakeOptimizer& make) {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : trained_in(part(index))) {
    names.push_back(name);
    parameters.push_back(tensor);
  }
  if (parameters.empty()) return nullptr;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (settings.scales_loss() && parameters[i].scalar_type() == at::kHalf)
      throw ConfigError(fmt::format(
          "precision=\"fp16\": {:?} of stage {} is of half precision itself, and its gradients could not be unscaled; "
          "expected float",
          names[i], index));
  }
  const bool apart =
      settings.is_stale(index) || settings.has_policy("spectrain") || settings.options.smoothing.radius > 0;
  auto weights = std::make_shared<Weights>(parameters, names, apart);
  auto& stepping = steppings[index] = std::make_unique<Stepping>(weights, make, settings.options.scheduler);
  // The policy was chosen by another stage's optimizer; each may have its own.
  if (const auto [fit, why] = staleness::optimizer_takes(stepping->asks().optimizer(), settings.policy());
      fit == staleness::Fit::refused)
    throw ConfigError(fmt::format("staleness={:?}: stage {}: {}", settings.policy(), index, why));
  return versions[index] = std::make_shared<Versions>(
             weights, staleness::make_policy(settings.policy(), settings.options.staleness_options), stepping->asks(),
             index, settings.request.stages);
}

at::Device Pipeline::Inside::device_of(int index) const {
  std::vector<int> asked{index};
  asked.insert(asked.end(), mine.begin(), mine.end());
  for (int other = 0; other <= last(); ++other) asked.push_back(other);
  for (int stage : asked) {
    if (!part(stage).module) continue;
    for (const auto& tensors : {part(stage).module->parameters(), part(stage).module->buffers()}) {
      if (!tensors.empty()) return tensors.front().device();
    }
  }
  return at::kCPU;
}

pipeline::Stage Pipeline::Inside::make_stage(int index, const MakeOptimizer& make) {
  const Options& options = settings.options;
  pipeline::Stage stage;
  stage.index = index;
  stage.name = fmt::format("stage {} ({})", index, part(index).name);
  for (size_t edge = 0; edge < options.edges.size(); ++edge) {
    if (options.edges[edge].to == index) stage.incoming.push_back(static_cast<int>(edge));
    if (options.edges[edge].from == index) stage.outgoing.push_back(static_cast<int>(edge));
  }
  stage.versions = make_versions(index, make);
  if (options.gaps && stage.versions) stage.gaps = gaps[index] = std::make_shared<Gaps>();
  stage.device = device_of(index);
  stage.recompute = settings.recomputes(index);
  stage.clip_share = clip_share(parts, part(index));
  stage.clip = options.clip * (options.clipping == "proportional" ? stage.clip_share : 1);
  stage.forward = [&part = part(index), &precision = settings.options.precision, device = stage.device,
                   outgoing = stage.outgoing.size(), hidden = hidden_from(parts, index),
                   name = stage.name](const std::vector<Value>& given) {
    Autocast autocast(precision, device);
    if (!hidden->is_done()) hidden->enter(tensors_in(given));
    std::vector<Value> outputs = run_part(part, given, outgoing);
    if (hidden->is_done()) return outputs;
    if (auto found = hidden->leave(tensors_in(outputs))) refuse_hidden(name, *found);
    return outputs;
  };
  stage.auxiliary_losses = part(index).auxiliary_losses;
  if (part(index).module) stage.buffers = [module = part(index).module] { return module->buffers(); };
  if (index == 0)
    stage.input = [this](int64_t micro_batch) { return sample_of(inputs, micro_batch); };
  else if (index == last())
    stage.input = [this](int64_t micro_batch) { return sample_of(targets, micro_batch); };
  if (index == last()) {
    stage.loss = [this, device = stage.device](const std::vector<Value>& outputs, int64_t micro_batch,
                                               int64_t samples) {
      Autocast autocast(settings.options.precision, device);
      const Value target = to_device(targets(micro_batch).y, device);
      measured.add(outputs.at(0), target, samples);
      return loss(outputs.at(0), target, samples);
    };
  }
  return stage;
}

void Pipeline::Inside::open_ledger() {
  // Of other edges nobody could tell in Python which value goes where.
  const bool are_named = std::ranges::none_of(parts, [](const Part& one) { return one.gives.empty(); });
  if (!are_named && settings.request.edges != schedule::chain_of(last() + 1))
    throw ConfigError("ledger: of stages with edges of your own only if they are cut from a pipeline::Graph");
  ledger = std::make_unique<LedgerWriter>(settings, parts, ranks);
  for (int index : mine) {
    if (auto found = steppings.find(index); found != steppings.end())
      ledger->watch(index, part(index), versions.at(index)->weights(), *found->second);
    else
      ledger->watch(index, part(index));
  }
  ledger->begin();
}

// --- running

Sample Pipeline::Inside::sample_of(const std::function<MicroBatch(int64_t)>& read, int64_t micro_batch) const {
  const MicroBatch found = read(micro_batch);
  return {found.x, found.samples, micro_batch % source->per_batch() == 0};
}

// `plan`: somebody's own, or nothing.
void Pipeline::Inside::require_agreement(int64_t batches, bool training, const std::string& plan) {
  const json said{batches, settings.fingerprint() + plan, training, measured.names()};
  const std::vector<json> all = gather_json(*ranks, said);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == said) continue;
    if (all[rank][3] != said[3])
      throw ConfigError(fmt::format("rank {} asks for the metrics {}, here {}; expected the same names", rank,
                                    all[rank][3].dump(), said[3].dump()));
    const std::string what = all[rank][0] == said[0]
                                 ? std::string("another pipeline")
                                 : fmt::format("{} batches, here {}", all[rank][0].get<int64_t>(), batches);
    throw ConfigError(
        fmt::format("rank {} runs {}: every rank must run the same pipeline on as many batches", rank, what));
  }
}

Record Pipeline::Inside::execute(bool training) {
  const RunOptions options{.training = training,
                           // Replicas draw other numbers.
                           .seed = settings.options.seed + (static_cast<uint64_t>(settings.replica) << 32),
                           .first_micro_batch = training ? done_before.micro_batches : 0,
                           .step_size = settings.synchronous() ? 0 : settings.options.accumulate,
                           .smoothing_radius = training ? settings.options.smoothing.radius : 0};
  const auto& planned = settings.plan.ranks.at(static_cast<size_t>(settings.place));
  if (training && settings.options.order == "ready") {
    done = planned;
    return executor->run_ready(settings.plan.request, done, options);
  }
  if (training) return executor->run(planned, options);
  evaluated = forwards_only(settings.request.edges, settings.request.rank_of_stage, settings.place, source->size());
  return executor->run(evaluated, options);
}

void Pipeline::Inside::add_note(const std::string& note) {
  if (std::ranges::find(settings.notes, note) == settings.notes.end()) settings.notes.push_back(note);
}

void Pipeline::Inside::end_ledger(const std::string& before) {
  ledger->end();
  add_note(fmt::format("ledger {:?} ends before {}", settings.options.ledger.string(), before));
}

// After a run that failed.
void Pipeline::Inside::make_equal_again() {
  if (settings.options.replicas == 1) return;
  const std::vector<json> all = gather_json(*ranks, whole);
  if (std::ranges::all_of(all, [](const json& one) { return one.get<bool>(); })) return;
  const std::vector<int> stages = make_replicas_equal(on_disk());
  if (!stages.empty())
    add_note(fmt::format("replicas of stages {} had done other steps when a run ended early; they are equal again",
                         fmt::join(stages, ", ")));
  whole = true;
}

schedule::Plan Pipeline::Inside::plan_of(int64_t batches) const {
  return settings.plan_of(batches, done_before.batches);
}

// Its messages have as much room as it asks for.
void Pipeline::Inside::take_plan(const schedule::Plan& own) {
  settings.plan = own;
  std::vector<int> needed = frames;
  for (size_t channel = 0; channel < needed.size(); ++channel)
    needed[channel] = std::max(frames[channel], own.capacity[channel]);
  if (needed == frames) return;
  auto made = connected(executor->stages(), needed);
  made->restore(executor->heard());
  executor = std::move(made);
  frames = needed;
}

Report Pipeline::Inside::run(const Batches& batches, bool training, Metrics metrics, const schedule::Plan* own) {
  measured = Measured(std::move(metrics));
  make_equal_again();
  agreed(*ranks, [&] {
    if (own && batches.size() == 0) throw ConfigError("a plan without batches: there is nothing to run");
    const bool steps_meet = settings.synchronous() && telling.any();
    if (own) schedule::require_runnable(*own, plan_of(batches.size()), {settings.most_stale, steps_meet});
    return json();
  });
  require_agreement(batches.size(), training, own ? schedule::to_json(*own) : "");
  if (batches.size() == 0) {
    Report report{.training = training};
    add_metrics(report);
    return report;
  }
  source = std::make_unique<MicroBatchReader>(batches, settings.options.micro_batches,
                                              training ? settings.options.smoothing.passes : 1);
  if (mine.front() == 0) inputs = source->place();
  if (mine.back() == last()) targets = source->place();
  std::optional<Evaluating> evaluating;
  if (training)
    make_train(modules_of(parts));
  else
    evaluating.emplace(modules_of(parts));
  if (own)
    take_plan(*own);
  else if (training)
    settings.plan = plan_of(batches.size());
  Record record;
  if (training && ledger) ledger->run_begins();
  whole = !training;  // until it is over
  try {
    record = execute(training);
    whole = true;
  } catch (...) {
    if (training && ledger && !ledger->ended()) end_ledger("the run that failed");
    throw;
  }
  const int64_t first = done_before.micro_batches;
  if (training) {
    done_before.micro_batches += source->size();
    done_before.batches += source->batches();
  }
  for (const auto& [index, node] : record.whole_backwards)
    add_note(fmt::format("stage {}: its backward is not split, because {} computes both parts at once", index, node));
  for (int index : record.unreached) {
    add_note(fmt::format(
        "stage {} has not been trained: its output, or that of a stage behind it, has no graph (a detach?)", index));
  }
  if (training && ledger && !ledger->ended()) {
    if (const std::string before = ledger->add(record, first); !before.empty()) end_ledger(before);
  }
  Report report = report_of(record, batches.size(), training);
  if (const auto from = report.not_finite_in; training && from)
    add_note(fmt::format("the loss is {} in batch {} of a run: {}", report.losses[*from], *from,
                         settings.scales_loss() ? "steps whose gradients are not finite are left out"
                                                : "weights are no numbers any more, or will be"));
  return report;
}

Report Pipeline::Inside::report_of(const Record& record, int64_t batches, bool training) const {
  std::vector<StageTimes> times;
  for (int index : mine) {
    const auto found = versions.find(index);
    times.push_back(times_of(record, index, ranks->rank(), found == versions.end() ? 0 : found->second->kept()));
    if (training && gaps.contains(index)) times.back().gap = gaps.at(index)->means();
    if (const Heard heard = executor->heard(); training && index == last() && heard.scale)
      times.back().loss_scale = heard.scale->scale;
  }
  Report report = joined(gather_json(*ranks, share_of(record, times, ranks->rank())), batches,
                         static_cast<int>(source->per_batch()));
  report.training = training;
  add_metrics(report);
  return report;
}

void Pipeline::Inside::add_metrics(Report& report) const {
  if (!measured.names().empty()) report.metrics = Measured::means(gather_json(*ranks, measured.share()));
}

NamedTensors Pipeline::Inside::state() {
  NamedTensors found;
  for (int index : mine) {
    const auto& module = part(index).module;
    if (!module) continue;
    if (versions.contains(index)) versions.at(index)->settle();
    const std::string prefix = part(index).prefix.value_or(fmt::format("{}.", index));
    for (const auto& item : module->named_parameters()) found[prefix + item.key()] = item.value();
    for (const auto& item : module->named_buffers()) found[prefix + item.key()] = item.value();
  }
  return gather_tensors(*ranks, found);
}

RankOnDisk Pipeline::Inside::on_disk() {
  RankOnDisk found{
      .ranks = *ranks, .settings = settings, .executor = *executor, .stages = {}, .layers = layers_of(parts)};
  for (int index : mine) {
    StageOnDisk& stage = found.stages.emplace_back(StageOnDisk{.index = index, .part = &part(index)});
    if (!steppings.contains(index)) continue;
    stage.versions = versions.at(index).get();
    stage.stepping = steppings.at(index).get();
  }
  return found;
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

Report Pipeline::run(const Batches& batches) { return inside_->run(batches, true, {}, nullptr); }
Report Pipeline::run(const Batches& batches, const schedule::Plan& own) {
  return inside_->run(batches, true, {}, &own);
}
schedule::Plan Pipeline::plan_of(int64_t batches) const { return inside_->plan_of(batches); }
Report Pipeline::evaluate(const Batches& batches, Metrics metrics) {
  return inside_->run(batches, false, std::move(metrics), nullptr);
}
NamedTensors Pipeline::state() { return inside_->state(); }

void Pipeline::save(const std::filesystem::path& folder) {
  inside_->make_equal_again();
  pipeline::save(inside_->on_disk(), inside_->done_before, folder);
}

void Pipeline::load(const std::filesystem::path& folder) {
  if (inside_->ledger)
    throw ConfigError("load: a ledger tells of a run from its first weights on; expected a pipeline without one");
  inside_->done_before = pipeline::load(inside_->on_disk(), folder);
  inside_->whole = true;  // also if a run before it was not
}

const std::string& Pipeline::staleness() const { return inside_->settings.policy(); }
const std::vector<std::string>& Pipeline::notes() const { return inside_->settings.notes; }
const schedule::Plan& Pipeline::plan() const { return inside_->settings.plan; }
int Pipeline::replica() const { return inside_->settings.replica; }
std::vector<int> Pipeline::stages() const { return inside_->mine; }

torch::optim::Optimizer* Pipeline::optimizer(int stage) {
  auto found = inside_->steppings.find(stage);
  return found == inside_->steppings.end() ? nullptr : &found->second->optimizer();
}

}  // namespace ddip
