#include "ddip/models/unet/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/data_parallel/replicas.h"
#include "ddip/models/event_tensors.h"
#include "ddip/models/unet/baselines.h"
#include "ddip/models/unet/device.h"
#include "ddip/models/unet/held_out.h"
#include "ddip/models/unet/learning_rate.h"
#include "ddip/models/unet/step.h"

namespace ddip::models::unet {
namespace {

using nlohmann::json;

constexpr const char* kLeftOver = "left_over";  // a part of a checkpoint

data::LoaderOptions loader_options(const Settings& settings, const Context& context, bool shuffle) {
  data::LoaderOptions options;
  options.sampling = {.rank = context.rank(),
                      .world = context.world_size(),
                      .batch = static_cast<uint64_t>(settings.batch),
                      .seed = settings.seed,
                      .shuffle = shuffle};
  options.threads = static_cast<int>(settings.readers);
  options.classes = kClasses;
  return options;
}

// Batches of a rank that takes every world-th of so many samples.
uint64_t batches_of(uint64_t samples, uint64_t rank, uint64_t world, uint64_t batch) {
  const uint64_t mine = (samples + world - 1 - rank) / world;
  return (mine + batch - 1) / batch;
}

}  // namespace

Trainer::Trainer(Context& context, RunFolder folder, Options options)
    : context_(context),
      folder_(std::move(folder)),
      settings_(folder_.settings()),
      options_(std::move(options)),
      device_(device_of(settings_.device, options_.local_rank)) {
  if (context_.rank() == 0) folder_.lock();
  std::shared_ptr<const data::EventSet> events = data::open_events(settings_.data);
  const uint64_t all = events->shape().events, held = events_held_out(all, settings_.hold_out);
  require_trainable(settings_, all);
  train_events_ = data::range_of(events, 0, all - held);
  held_out_ = data::range_of(events, all - held, held);
  train_loader_ = std::make_unique<data::Loader>(train_events_, loader_options(settings_, context_, true));
  held_out_loader_ = std::make_unique<data::Loader>(held_out_, loader_options(settings_, context_, false));

  const auto channels = static_cast<int64_t>(events->shape().channels);
  auto network =
      std::make_shared<Network>(NetworkOptions{channels, kClasses, settings_.width, settings_.depth}, settings_.seed);
  network->to(device_);
  network->use_channels_last();
  adam_ = std::make_unique<Adam>(network->parameters());
  DataParallel<std::shared_ptr<Network>>::Options how;
  how.compress = settings_.compress;
  how.find_unused = false;
  how.skip_nonfinite = true;
  model_ = std::make_unique<DataParallel<std::shared_ptr<Network>>>(context_, network, how);
  if (options_.resume) resume();

  const uint64_t samples = static_cast<uint64_t>(settings_.epochs) * train_events_->shape().events;
  const uint64_t before = epoch_ * train_events_->shape().events + done_.count();
  const auto form = context_.rank() != 0 ? Progress::Form::silent
                    : options_.bar       ? Progress::Form::bar
                                         : Progress::Form::lines;
  progress_ = std::make_unique<Progress>(form, before, samples);
  int64_t weights = 0;
  for (const at::Tensor& parameter : network->parameters()) weights += parameter.numel();
  progress_->say(
      fmt::format("{} events to train on, {} held out; U-Net of {:.1f} M parameters; {} rank{} on {}, batch {} each",
                  train_events_->shape().events, held, static_cast<double>(weights) / 1e6, context_.world_size(),
                  context_.world_size() == 1 ? "" : "s", device_.str(), settings_.batch));
  std::error_code error;
  if (context_.rank() == 0 && !std::filesystem::exists(folder_.baselines(), error))
    Baselines::learn(train_events_, kClasses, settings_.seed).save(folder_.baselines());
}

tensors::NamedTensors Trainer::model_tensors() const {
  tensors::NamedTensors tensors;
  for (const auto& entry : model_->module()->named_parameters()) tensors.emplace_back(entry.key(), entry.value());
  for (const auto& entry : model_->module()->named_buffers()) tensors.emplace_back(entry.key(), entry.value());
  return tensors;
}

tensors::NamedTensors Trainer::optimizer_tensors() const {
  tensors::NamedTensors tensors;
  for (const Adam::Named& entry : adam_->state(model_->module()->named_parameters().keys()))
    tensors.emplace_back(entry.name, entry.tensor);
  return tensors;
}

// By compression: what each rank keeps, in the order of the ranks; on rank 0.
tensors::NamedTensors Trainer::left_over() {
  tensors::NamedTensors all;
  for (const auto& [name, tensor] : model_->compression_state()) {
    const std::vector<at::Tensor> of_rank = context_.communicator()->gather(tensor.cpu(), 0);
    if (!of_rank.empty()) all.emplace_back(name, at::stack(of_rank));
  }
  return all;
}

// With another number of ranks each owes the mean of what they owed: as much as before in all.
void Trainer::load_left_over(const checkpoint::SafetensorsFile& file) {
  tensors::NamedTensors mine;
  for (const auto& [name, of_rank] : tensors::read_tensors(file)) {
    if (of_rank.size(0) == context_.world_size())
      mine.emplace_back(name, of_rank[context_.rank()]);
    else
      mine.emplace_back(name, name.starts_with("rest.") ? of_rank.mean(0) : of_rank[0]);
  }
  model_->load_compression_state(mine);
}

void Trainer::resume() {
  const auto manifest = folder_.store().last();
  if (!manifest) return;  // interrupted before the first checkpoint: from the beginning
  // Both are checked before either is loaded.
  const checkpoint::SafetensorsFile model = folder_.store().open(*manifest, "model");
  const checkpoint::SafetensorsFile optimizer = folder_.store().open(*manifest, "optimizer");
  try {
    const json about = json::parse(manifest->about);
    epoch_ = about.at("epoch").get<uint64_t>();
    step_ = about.at("step").get<uint64_t>();
    done_ = data::Ledger::parse(about.at("done").get<std::string>());
    best_ = about.at("best").get<double>();
    best_epoch_ = about.at("best_epoch").get<uint64_t>();
    best_saved_ = about.at("best_saved").get<double>();
  } catch (const json::exception&) {
    throw ConfigError(fmt::format("{}: its last checkpoint is of another program", folder_.path().string()));
  }
  tensors::require_fit(model, model_tensors());
  tensors::require_fit(optimizer, optimizer_tensors());
  tensors::load_tensors(model, model_tensors());
  tensors::load_tensors(optimizer, optimizer_tensors());
  if (manifest->files.contains(kLeftOver)) load_left_over(folder_.store().open(*manifest, kLeftOver));
}

Trainer::Ending Trainer::run() {
  while (epoch_ < static_cast<uint64_t>(settings_.epochs)) {
    if (settings_.patience > 0 && epoch_ > best_epoch_ + static_cast<uint64_t>(settings_.patience)) {
      progress_->say(
          fmt::format("no better than epoch {} for {} epochs: stopped", best_epoch_ + 1, settings_.patience));
      return Ending::early_stop;
    }
    const auto began = std::chrono::steady_clock::now();
    const Epoch trained = train_epoch();
    if (trained.ended_early) {
      const bool saved = save(-1);
      progress_->say(
          fmt::format("interrupted in epoch {}; {}", epoch_ + 1,
                      saved ? "a checkpoint was saved, --resume goes on" : "no checkpoint of it could be saved"));
      return Ending::asked;
    }
    const Evaluation evaluation = validate();
    ++epoch_;
    done_ = {};
    save(evaluation.scores.nonzero_accuracy());
    report(trained, evaluation, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return Ending::done;
}

struct Trainer::Sums {
  explicit Sums(at::Device device) : loss(at::zeros({}, at::TensorOptions(device))) {}

  data::Ledger samples;
  at::Tensor loss;
  int64_t counted = 0;  // steps in `loss`
  uint64_t skipped = 0;
  uint64_t at_first = 0;   // samples that this rank had before it
  uint64_t all_ranks = 0;  // samples of the epoch that all ranks together have done, as far as this one can tell
};

Trainer::Epoch Trainer::train_epoch() {
  const uint64_t per_epoch = train_events_->shape().events, world = static_cast<uint64_t>(context_.world_size()),
                 batch = static_cast<uint64_t>(settings_.batch), left = per_epoch - done_.count();
  train_loader_->begin_epoch(epoch_, done_);
  Sums sums(device_);
  sums.at_first = train_loader_->remaining();
  sums.all_ranks = done_.count();
  model_->module()->train();
  // All ranks make these together, and agree before each whether to go on: whoever resumes finds them equally far.
  const uint64_t together = batches_of(left, world - 1, world, batch);
  bool ended_early = false;
  for (uint64_t count = 0; count < together && !ended_early; ++count) {
    ended_early = anybody(options_.should_end && options_.should_end());
    if (!ended_early) make_step(sums);
  }
  // Then some may have one more.
  if (!ended_early && batches_of(left, 0, world, batch) > together) {
    model_->join([&] {
      if (train_loader_->remaining() > 0) make_step(sums);
    });
    adopt_newest_optimizer();
  }
  // Batch norm's running means are each rank's own until the next forward: all test, and save, rank 0's.
  data_parallel::broadcast_all(*context_.communicator(), model_->module()->buffers(), 0);
  Epoch epoch = add_up(sums);
  epoch.ended_early = ended_early;
  return epoch;
}

void Trainer::make_step(Sums& sums) {
  const auto began = std::chrono::steady_clock::now();
  const uint64_t world = static_cast<uint64_t>(context_.world_size());
  const auto batch = next_tensors(*train_loader_);
  DDIP_CHECK(batch.has_value(), "a batch for every step");
  const at::Tensor labels = batch->labels.to(device_);
  const uint64_t per_epoch = train_events_->shape().events;
  sums.all_ranks = std::min(per_epoch, sums.all_ranks + batch->samples.size() * world);
  const double share =
      (static_cast<double>(epoch_) + static_cast<double>(sums.all_ranks) / static_cast<double>(per_epoch)) /
      static_cast<double>(settings_.epochs);
  const Step step =
      train_step([&](const at::Tensor& images) { return model_->forward(images); }, *adam_,
                 prepared(batch->images, device_), labels, settings_.precision, learning_rate(settings_.lr, share));
  ++step_;
  sums.samples.add(batch->samples);
  if (step.skipped) {
    ++sums.skipped;
  } else {
    ++sums.counted;
    sums.loss += step.loss.detach();
  }
  progress_->add_samples(batch->samples.size() * world, std::chrono::steady_clock::now() - began);
  if (!progress_->wants_update()) return;
  Scores scores(kClasses);
  scores.add(step.logits.argmax(1), labels, batch->images.select(1, 0).to(device_) > 0);
  progress_->show({.epoch = static_cast<int64_t>(epoch_) + 1,
                   .epochs = settings_.epochs,
                   .share = 1 - static_cast<double>(train_loader_->remaining()) / static_cast<double>(sums.at_first),
                   .loss = step.loss.item<double>(),
                   .nonzero_accuracy = scores.nonzero_accuracy()});
}

Trainer::Epoch Trainer::add_up(const Sums& sums) {
  at::Tensor all = at::tensor({sums.loss.item<double>(), static_cast<double>(sums.counted)}, at::kDouble);
  context_.communicator()->all_reduce(all);
  Epoch epoch;
  epoch.loss = all[0].item<double>() / std::max(1.0, all[1].item<double>());
  epoch.skipped = sums.skipped;
  done_.add(of_all_ranks(sums.samples));
  if (!std::isfinite(epoch.loss) || (all[1].item<double>() == 0 && sums.skipped > 0))
    throw std::runtime_error(
        fmt::format("the loss of epoch {} is not a finite number; try a smaller --lr", epoch_ + 1));
  return epoch;
}

// A rank that had a batch less than others was given the newest weights at the end of join, but made no step for them.
void Trainer::adopt_newest_optimizer() {
  const at::Tensor steps = context_.communicator()->all_gather(at::full({1}, static_cast<int64_t>(step_), at::kLong));
  const auto newest = steps.max().item<int64_t>();
  if (steps.min().item<int64_t>() == newest) return;
  const int root = static_cast<int>(steps.flatten().argmax().item<int64_t>());
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : optimizer_tensors()) tensors.push_back(tensor);
  data_parallel::broadcast_all(*context_.communicator(), tensors, root);
  step_ = static_cast<uint64_t>(newest);
}

Evaluation Trainer::validate() {
  Evaluation evaluation = evaluate(*model_->module(), *held_out_loader_, device_, settings_.precision);
  context_.communicator()->all_reduce(evaluation.scores.counts());
  at::Tensor sums = at::tensor({evaluation.loss_sum, static_cast<double>(evaluation.samples)}, at::kDouble);
  context_.communicator()->all_reduce(sums);
  evaluation.loss_sum = sums[0].item<double>();
  evaluation.samples = static_cast<int64_t>(sums[1].item<double>());
  return evaluation;
}

bool Trainer::anybody(bool mine) {
  at::Tensor flag = at::full({1}, mine ? 1 : 0, at::kLong);
  context_.communicator()->all_reduce(flag, comm::Reduction::max);
  return flag.item<int64_t>() != 0;
}

data::Ledger Trainer::of_all_ranks(const data::Ledger& mine) {
  const std::string text = mine.text();
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  context_.communicator()->all_reduce(length, comm::Reduction::max);
  at::Tensor padded = at::full({length.item<int64_t>() + 1}, 0, at::kByte);
  std::copy(text.begin(), text.end(), padded.data_ptr<uint8_t>());
  const at::Tensor all = context_.communicator()->all_gather(padded);
  data::Ledger ledger;
  for (int64_t rank = 0; rank < all.size(0); ++rank)
    ledger.add(data::Ledger::parse(reinterpret_cast<const char*>(all[rank].contiguous().data_ptr<uint8_t>())));
  return ledger;
}

// `accuracy` below 0: in the middle of an epoch, which is never the best. Whether it is on the disk; on rank 0.
bool Trainer::save(double accuracy) {
  if (accuracy > best_) {
    best_ = accuracy;
    best_epoch_ = epoch_ - 1;
  }
  const tensors::NamedTensors rests = left_over();
  if (context_.rank() != 0) return true;
  const bool best = accuracy > best_saved_;
  const json about = {{"epoch", epoch_},
                      {"step", step_},
                      {"done", done_.text()},
                      {"best", best_},
                      {"best_epoch", best_epoch_},
                      {"best_saved", best ? accuracy : best_saved_},
                      {"nonzero_accuracy", accuracy},
                      {"settings", json::parse(settings_.json())}};
  const tensors::TensorBytes model(model_tensors()), optimizer(optimizer_tensors()), left(rests);
  std::vector<checkpoint::Store::Part> parts = {{"model", model.named()}, {"optimizer", optimizer.named()}};
  if (!rests.empty()) parts.push_back({kLeftOver, left.named()});
  try {
    folder_.store().save({step_, about.dump(), std::move(parts), best});
  } catch (const std::exception& error) {
    // The run is worth more than this checkpoint, and the older ones are still there.
    progress_->say(
        fmt::format("the checkpoint of step {} could not be saved: {}; training goes on", step_, error.what()));
    return false;
  }
  if (best) best_saved_ = accuracy;
  return true;
}

void Trainer::report(const Epoch& trained, const Evaluation& evaluation, double seconds) {
  if (context_.rank() != 0) return;
  const Scores& scores = evaluation.scores;
  progress_->say(fmt::format(
      "epoch {}/{}: loss {:.4f}, held out {:.4f}, non-zero accuracy {:.4f}, IoU shower {:.3f} track "
      "{:.3f}, {:.1f} samples/s{}{}",
      epoch_, settings_.epochs, trained.loss, evaluation.loss(), scores.nonzero_accuracy(), scores.iou(1),
      scores.iou(2), progress_->samples_per_second(), best_epoch_ + 1 == epoch_ ? "  (best)" : "",
      trained.skipped == 0 ? "" : fmt::format("; {} steps left out: a value was not finite", trained.skipped)));
  const json line = {{"epoch", epoch_},
                     {"step", step_},
                     {"loss", trained.loss},
                     {"held_out_loss", evaluation.loss()},
                     {"pixel_accuracy", scores.pixel_accuracy()},
                     {"nonzero_accuracy", scores.nonzero_accuracy()},
                     {"iou", {scores.iou(0), scores.iou(1), scores.iou(2)}},
                     {"samples_per_second", progress_->samples_per_second()},
                     {"seconds", seconds},
                     {"skipped", trained.skipped},
                     {"ranks", context_.world_size()}};
  folder_.log(line.dump());
}

}  // namespace ddip::models::unet
