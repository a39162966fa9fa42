#include "ddip/pipeline/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

using schedule::Action;
using schedule::Direction;
using schedule::Kind;

// Above what people use for messages of their own. MPI promises no tag above 32767.
constexpr int64_t kFirstTag = 1 << 20, kFirstMpiTag = 1 << 12, kLastMpiTag = 32767;

// Every pipeline has tags of its own: a receive that an earlier one has left posted must not take its messages. Ranks
// may have made different numbers of them, if one failed.
int first_tag(tensors::Communicator& ranks, int tags) {
  static std::atomic<int64_t> used{0};
  at::Tensor first = at::full({1}, used.load(), at::kLong);
  ranks.all_reduce(first, comm::Reduction::max);
  int64_t begin = first.item<int64_t>();
  used = begin + tags;
  if (ranks.name() != "mpi") return static_cast<int>(kFirstTag + begin);
  if (kFirstMpiTag + begin + tags > kLastMpiTag)
    throw ConfigError("MPI has no tags left for another pipeline; expected fewer of them in one program");
  return static_cast<int>(kFirstMpiTag + begin);
}

// An error of Python's has its traceback behind it; that is shown where it happened.
std::string first_line(const char* text) {
  std::string line(text);
  return line.substr(0, line.find('\n'));
}

}  // namespace

Executor::Executor(std::shared_ptr<tensors::Communicator> ranks, std::vector<Stage> stages, Arrangement arrangement,
                   Telling telling, Poll poll)
    : ranks_(std::move(ranks)),
      stages_(std::move(stages)),
      arrangement_(std::move(arrangement)),
      replica_(ranks_->rank() / arrangement_.width),
      telling_(std::move(telling)),
      wiring_(arrangement_, telling_.any() ? telling_.delay + 2 : 0),
      interrupted_(std::move(poll)),
      poll_([this] { this->poll(); }) {
  const std::vector<Link>& links = wiring_.links();
  const int tags = first_tag(*ranks_, static_cast<int>(links.size()) * kTagsOfAChannel + 1);
  const int me = ranks_->rank();
  std::set<int> neighbours, senders;
  for (const auto& [from, to, frames] : links) {
    if (to == me && from != me) senders.insert(from);
  }
  std::vector<at::Device> devices;
  for (const Stage& stage : stages_) devices.push_back(stage.device);
  TensorsOf tensors{.gpu = std::ranges::all_of(devices, [](at::Device device) { return device.is_cuda(); }),
                    .lane = gpu_of_lanes(*ranks_, devices, senders)};
  if (tensors.lane) {
    stream_ = std::make_unique<AfterStream>(*tensors.lane);
    tensors.stream = stream_.get();
  }
  for (size_t number = 0; number < links.size(); ++number) {
    const auto& [from, to, frames] = links[number];
    if (from == to || (me != from && me != to)) continue;
    int tag = tags + 1 + static_cast<int>(number) * kTagsOfAChannel;
    if (me == from) senders_.try_emplace(number, ranks_, Address{to, tag}, frames, tensors);
    if (me == to) receivers_.try_emplace(number, ranks_, Address{from, tag}, frames, tensors);
    neighbours.insert(me == from ? to : from);
  }
  alarms_ = std::make_unique<Alarms>(ranks_, std::vector<int>(neighbours.begin(), neighbours.end()), tags);
  const int here = me % arrangement_.width;
  int telling_stages = 0;
  for (const Stage& stage : stages_) {
    telling_stages += tells(stage) ? 1 : 0;
    if (telling_.loss_scale && stage.loss) loss_scale_.emplace(*telling_.loss_scale);
  }
  if (telling_stages == 0) return;
  std::vector<Norms::Peer> peers;
  for (int rank : telling_.ranks) {
    if (rank == here) continue;
    peers.push_back(
        {rank, &senders_.at(wiring_.norm(replica_, here, rank)), &receivers_.at(wiring_.norm(replica_, rank, here))});
  }
  norms_ = std::make_unique<Norms>(here, std::move(peers), telling_stages, telling_.delay);
}

void Executor::poll() {
  if (interrupted_) interrupted_();
  alarms_->check();
}

Stage& Executor::stage(int index) {
  for (Stage& stage : stages_) {
    if (stage.index == index) return stage;
  }
  throw ConfigError(fmt::format("the plan gives stage {} to rank {}, which does not have it", index, ranks_->rank()));
}

bool Executor::tells(const Stage& stage) const {
  return telling_.loss_scale || (telling_.global_norm && stage.versions);
}

bool Executor::is_local(int edge) const {
  const schedule::Edge& ends = arrangement_.edges.at(static_cast<size_t>(edge));
  return arrangement_.rank_of_stage.at(static_cast<size_t>(ends.from)) ==
         arrangement_.rank_of_stage.at(static_cast<size_t>(ends.to));
}

bool Executor::reads_twice() const { return arrangement_.rank_of_stage.front() != arrangement_.rank_of_stage.back(); }

size_t Executor::link_of(const Action& action) const {
  return wiring_.edge(replica_, schedule::channel_of(action.edge, action.direction == Direction::gradient));
}

std::string Executor::place(const Action& action) const {
  std::string name = action.stage < 0 ? std::string("the pipeline") : fmt::format("stage {}", action.stage);
  for (const Stage& stage : stages_) {
    if (stage.index == action.stage && !stage.name.empty()) name = stage.name;
  }
  return fmt::format("{}, {} of micro-batch {}", name, name_of(action.kind), action.micro_batch);
}

Record Executor::run(const std::vector<Action>& actions, const RunOptions& options) {
  ready_ = false;
  return run(actions, actions, options, [&] {
    for (const Action& action : actions) perform(action, now());
  });
}

Record Executor::run_ready(const schedule::Request& request, std::vector<Action>& actions, const RunOptions& options) {
  ready_ = true;
  schedule::ReadyOrder order(request, stages_.at(0).index);
  std::vector<Action> done = actions;  // so many at the most: what only the plan has is left out
  Record record = run(actions, done, options, [&] { perform_ready(order, done); });
  done.resize(record.size());
  actions.swap(done);
  return record;
}

Record Executor::run(const std::vector<Action>& planned, std::span<const Action> done, const RunOptions& options,
                     const std::function<void()>& all) {
  options_ = options;
  record_ = Record(done);
  flights_.clear();
  now_ = nullptr;
  uint64_t sent_before = 0;
  for (const auto& [link, sender] : senders_) sent_before += sender.bytes();
  try {
    prepare(planned);
    started_ = std::chrono::steady_clock::now();
    record_.start = std::chrono::duration<double>(started_.time_since_epoch()).count();
    all();
    if (norms_) norms_->settle(poll_);
    for (auto& [link, sender] : senders_) sender.flush(poll_);
    if (stream_) stream_->check();
  } catch (const PeerLost&) {
    reset();  // nothing can be agreed upon with a rank that is gone
    throw;
  } catch (const StageFailed& failure) {
    fail(failure.what());
    throw;
  } catch (const std::exception& failure) {
    fail(fmt::format("{} (rank {}): {}", now_ ? place(*now_) : "the pipeline", ranks_->rank(),
                     first_line(failure.what())));
    throw;
  }
  // Before any rank can be sure that the run is over, and may free what it has shown to others.
  for (auto& [link, receiver] : receivers_) receiver.close_lane();
  agree("");
  for (int stage : reached_) record_.unreached.erase(stage);
  for (Stage& stage : stages_) {
    if (stage.versions) stage.versions->settle();
    if (stage.gaps) stage.gaps->end();
  }
  for (const auto& [link, sender] : senders_) record_.bytes_sent += sender.bytes();
  record_.bytes_sent -= sent_before;
  return std::move(record_);
}

double Executor::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

void Executor::perform(const Action& action, double begin) {
  now_ = &action;
  poll();
  Done done{.action = action, .begin = begin};
  execute(action, done);
  done.end = now();
  record_.add(done);
  if (options_.progress) options_.progress(record_);
}

void Executor::perform_ready(schedule::ReadyOrder& order, std::vector<Action>& done) {
  for (;;) {
    const std::vector<Action> backward = order.backward(), forward = order.forward();
    if (backward.empty() && forward.empty()) return;
    double begin = now();  // the wait for whatever comes first is a part of its message
    now_ = nullptr;
    bool back = forward.empty();
    if (!backward.empty() && !forward.empty()) {
      for (;;) {
        poll();
        // The forward first, as in the plan: the stages behind wait for it.
        const std::optional<Completion> input = awaited(forward);
        const std::optional<Completion> gradient = input ? awaited(backward) : input;
        back = input && !gradient;
        if (!gradient || !input) break;
        wait_for_any({*gradient, *input}, poll_);
      }
    }
    for (const Action& action : back ? backward : forward) {
      Action& next = done.at(record_.size());
      next = action;
      perform(next, begin);
      begin = now();
    }
    back ? order.did_backward() : order.did_forward();
  }
}

std::optional<Completion> Executor::awaited(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (action.kind != Kind::receive) continue;
    if (auto message = receivers_.at(link_of(action)).awaited()) return message;
  }
  return {};
}

void Executor::prepare(const std::vector<Action>& actions) {
  for (Stage& stage : stages_) {
    if (!stage.versions) continue;
    stage.versions->weights().require_used();
    if (stage.gaps) stage.gaps->begin();
    std::vector<int64_t> reads;
    double staleness = 0;
    for (const Action& action : actions) {
      if (action.kind != Kind::forward || action.stage != stage.index) continue;
      reads.push_back(std::max<int64_t>(action.version, 0));
      staleness += action.staleness;
    }
    double mean = reads.empty() ? 0 : staleness / static_cast<double>(reads.size());
    // Every forward of an order that is found reads the newest weights, whichever those are.
    if (ready_ || !options_.training) reads.clear();
    stage.versions->begin({.reads = std::move(reads),
                           .mean_staleness = mean,
                           .accumulate = std::max(options_.step_size, 1),
                           .scales_loss = telling_.loss_scale.has_value(),
                           .smoothing_radius = options_.smoothing_radius,
                           .seed = options_.seed,
                           .first_micro_batch = options_.first_micro_batch});
  }
  std::map<size_t, int64_t> coming;  // by link
  std::map<int, int64_t> steps;      // by stage
  waiting_.clear();
  split_stages_.clear();
  reached_.clear();
  steps_.clear();
  for (const Action& action : actions) {
    if (action.kind == Kind::receive) ++coming[link_of(action)];
    if (action.kind == Kind::weight_gradient) split_stages_.insert(action.stage);
    if (action.kind == Kind::step) ++steps[action.stage];
  }
  int64_t most = 0;
  for (auto [index, count] : steps) {
    if (arrangement_.replicas > 1 && stage(index).versions)
      coming[wiring_.sum_to(index, replica_)] += count * ring_of(stage(index)).messages();
    if (tells(stage(index))) most = std::max(most, count);
  }
  if (norms_) {
    for (int rank : telling_.ranks) coming[wiring_.norm(replica_, rank, ranks_->rank() % arrangement_.width)] += most;
    norms_->begin();
  }
  for (auto& [link, receiver] : receivers_) receiver.expect(coming[link]);
}

void Executor::execute(const Action& action, Done& done) {
  switch (action.kind) {
    case Kind::receive: return receive(action);
    case Kind::send: return send(action);
    case Kind::forward: return forward(action, done);
    case Kind::backward: return backward(action, done);
    case Kind::step: return step(action, done);
    case Kind::weight_gradient: return weight_gradients(action, done);
    // Sends wait for free frames by themselves; the policy keeps and predicts right before the forward that the plan
    // names.
    case Kind::retire:
    case Kind::stash:
    case Kind::predict: return;
    case Kind::drain:
      if (!flights_.empty()) throw ConfigError("the plan has a drain while micro-batches are under way");
      return;
  }
}

void Executor::end_messages() {
  stream_.reset();
  norms_.reset();
  receivers_.clear();
  senders_.clear();
  alarms_.reset();
}

Heard Executor::heard() const {
  Heard found;
  if (norms_) found.squares = norms_->squares();
  if (loss_scale_) found.scale = loss_scale_->state();
  return found;
}

void Executor::restore(Heard heard) {
  if (loss_scale_) {
    const LossScale::State fresh{.scale = telling_.loss_scale->initial};
    const int64_t known = loss_scale_->restore(heard.scale.value_or(fresh), telling_.delay);
    // Each square tells what became of the oldest scale that is under way: as many of the one as of the other.
    std::erase_if(heard.squares, [&](const auto& one) { return one.first < -known; });
  } else {
    // Of steps that were left out for being too large: no limit for those to come.
    std::erase_if(heard.squares, [](const auto& one) { return !std::isfinite(one.second); });
  }
  if (norms_) norms_->restore(std::move(heard.squares));
}

// --- the end of a run

void Executor::fail(const std::string& why) {
  try {
    agree(why);
  } catch (const std::exception&) {
    // What went wrong first is what is thrown.
  }
  reset();
}

void Executor::reset() {
  flights_.clear();
  waiting_.clear();
  record_ = Record();  // it speaks of actions that nobody has to keep any more
  if (norms_) norms_->reset();
  if (loss_scale_) loss_scale_->forget();
  for (Stage& stage : stages_) {
    if (stage.gaps) stage.gaps->begin();
    if (stage.versions) stage.versions->reset();
  }
}

void Executor::agree(const std::string& why) {
  if (!why.empty()) alarms_->raise(why);
  size_t links = wiring_.links().size();
  at::Tensor table = at::zeros({static_cast<int64_t>(1 + 2 * links)}, at::kLong);
  auto* cells = table.mutable_data_ptr<int64_t>();
  cells[0] = why.empty() ? 0 : 1;
  for (const auto& [link, sender] : senders_) cells[1 + link] = sender.sent();
  for (const auto& [link, receiver] : receivers_) cells[1 + links + link] = receiver.posted();
  ranks_->all_reduce(table);
  if (cells[0] == 0) return;
  if (why.empty()) alarms_->raise("");  // every rank does, so that all of them know how many come
  // Every rank is here, so that nothing is waited for without an end; one that a second Ctrl-C took out would leave the
  // others, and the channels, half-way.
  const Poll to_the_end;
  for (auto& [link, sender] : senders_) sender.level(cells[1 + links + link], to_the_end);
  for (auto& [link, receiver] : receivers_) receiver.level(cells[1 + link], to_the_end);
  for (auto& [link, sender] : senders_) sender.flush(to_the_end);
  for (auto& [link, receiver] : receivers_) receiver.close_lane();
  alarms_->settle(to_the_end);
  constexpr int64_t kText = 1024;
  at::Tensor text = at::zeros({kText}, at::kByte);
  why.copy(reinterpret_cast<char*>(text.mutable_data_ptr<uint8_t>()), kText - 1);
  at::Tensor all = ranks_->all_gather(text);
  if (!why.empty()) return;
  for (int rank = 0; rank < ranks_->world(); ++rank) {
    std::string theirs(reinterpret_cast<const char*>(all[rank].const_data_ptr<uint8_t>()));
    if (!theirs.empty()) {
      reset();
      throw StageFailed(theirs);
    }
  }
}

}  // namespace ddip::pipeline
