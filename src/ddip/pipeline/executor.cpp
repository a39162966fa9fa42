#include "ddip/pipeline/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/pipeline/fingerprint.h"
#include "ddip/pipeline/random.h"

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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int before(int replica, int replicas) { return (replica + replicas - 1) % replicas; }

// An error of Python's has its traceback behind it; that is shown where it happened.
std::string first_line(const char* text) {
  std::string line(text);
  return line.substr(0, line.find('\n'));
}

// Everything a forward may change beside its result, put back afterwards: a recomputation must not count twice.
class KeptBuffers {
 public:
  explicit KeptBuffers(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
    for (const at::Tensor& buffer : buffers_) copies_.push_back(buffer.detach().clone());
  }
  ~KeptBuffers() {
    at::NoGradGuard quiet;
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(copies_[i]);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;
};

Value to_device(const Value& value, at::Device device) {
  if (device.is_cpu()) return value;
  return with_tensors(value, [device](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/false); });
}

Value copied(const Value& value) {
  return with_tensors(value, [](const at::Tensor& tensor) { return tensor.detach().clone(); });
}

}  // namespace

Executor::Executor(std::shared_ptr<tensors::Communicator> ranks, std::vector<Stage> stages, Arrangement arrangement,
                   Clipping clipping, Poll poll)
    : ranks_(std::move(ranks)),
      stages_(std::move(stages)),
      arrangement_(std::move(arrangement)),
      replica_(ranks_->rank() / arrangement_.width),
      clipping_(std::move(clipping)),
      wiring_(arrangement_, clipping_.global ? clipping_.delay + 2 : 0),
      interrupted_(std::move(poll)),
      poll_([this] { this->poll(); }) {
  const std::vector<Link>& links = wiring_.links();
  const int tags = first_tag(*ranks_, static_cast<int>(links.size()) * kTagsOfAChannel + 1);
  const int me = ranks_->rank();
  std::set<int> neighbours;
  // Of all stages: one of the CPU sees its frames, and may copy from them behind our back if they are pinned.
  const bool gpu = std::ranges::all_of(stages_, [](const Stage& stage) { return stage.device.is_cuda(); });
  for (size_t number = 0; number < links.size(); ++number) {
    const auto& [from, to, frames] = links[number];
    if (from == to || (me != from && me != to)) continue;
    int tag = tags + 1 + static_cast<int>(number) * kTagsOfAChannel;
    if (me == from) senders_.try_emplace(number, ranks_, Address{to, tag}, frames, gpu);
    if (me == to) receivers_.try_emplace(number, ranks_, Address{from, tag}, frames, gpu);
    neighbours.insert(me == from ? to : from);
  }
  alarms_ = std::make_unique<Alarms>(ranks_, std::vector<int>(neighbours.begin(), neighbours.end()), tags);
  const int here = me % arrangement_.width;
  int trained = 0;
  for (const Stage& stage : stages_) trained += stage.versions ? 1 : 0;
  if (!clipping_.global || trained == 0) return;
  std::vector<Norms::Peer> peers;
  for (int rank : clipping_.ranks) {
    if (rank == here) continue;
    peers.push_back(
        {rank, &senders_.at(wiring_.norm(replica_, here, rank)), &receivers_.at(wiring_.norm(replica_, rank, here))});
  }
  norms_ = std::make_unique<Norms>(here, std::move(peers), trained, clipping_.delay);
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
  options_ = options;
  record_ = Record(actions);
  flights_.clear();
  uint64_t sent_before = 0;
  for (const auto& [link, sender] : senders_) sent_before += sender.bytes();
  const Action* now = nullptr;
  try {
    prepare(actions);
    auto start = std::chrono::steady_clock::now();
    record_.start = std::chrono::duration<double>(start.time_since_epoch()).count();
    for (const Action& action : actions) {
      now = &action;
      poll();
      Done done{.action = action, .begin = seconds_since(start)};
      execute(action, done);
      done.end = seconds_since(start);
      record_.add(done);
      if (options_.progress) options_.progress(record_);
    }
    if (norms_) norms_->settle(poll_);
    for (auto& [link, sender] : senders_) sender.flush(poll_);
  } catch (const PeerLost&) {
    reset();  // nothing can be agreed upon with a rank that is gone
    throw;
  } catch (const StageFailed& failure) {
    fail(failure.what());
    throw;
  } catch (const std::exception& failure) {
    fail(fmt::format("{} (rank {}): {}", now ? place(*now) : "the pipeline", ranks_->rank(),
                     first_line(failure.what())));
    throw;
  }
  agree("");
  for (Stage& stage : stages_) {
    if (stage.versions) stage.versions->settle();
    if (stage.gaps) stage.gaps->end();
  }
  for (const auto& [link, sender] : senders_) record_.bytes_sent += sender.bytes();
  record_.bytes_sent -= sent_before;
  return std::move(record_);
}

// --- one action

void Executor::prepare(const std::vector<Action>& actions) {
  for (Stage& stage : stages_) {
    if (!stage.versions) continue;
    if (stage.gaps) stage.gaps->begin();
    std::vector<int64_t> reads;
    double staleness = 0;
    for (const Action& action : actions) {
      if (action.kind != Kind::forward || action.stage != stage.index) continue;
      reads.push_back(std::max<int64_t>(action.version, 0));
      staleness += action.staleness;
    }
    double mean = reads.empty() ? 0 : staleness / static_cast<double>(reads.size());
    stage.versions->begin(options_.training ? reads : std::vector<int64_t>{}, mean, std::max(options_.step_size, 1));
  }
  std::map<size_t, int64_t> coming;  // by link
  std::map<int, int64_t> steps;      // by stage
  waiting_.clear();
  split_stages_.clear();
  for (const Action& action : actions) {
    if (action.kind == Kind::receive) ++coming[link_of(action)];
    if (action.kind == Kind::weight_gradient) split_stages_.insert(action.stage);
    if (action.kind == Kind::step && stage(action.stage).versions) ++steps[action.stage];
  }
  int64_t most = 0;
  for (auto [index, count] : steps) {
    if (arrangement_.replicas > 1)
      coming[wiring_.sum(index, before(replica_, arrangement_.replicas))] += count * ring_of(stage(index)).messages();
    most = std::max(most, count);
  }
  if (norms_) {
    for (int rank : clipping_.ranks) coming[wiring_.norm(replica_, rank, ranks_->rank() % arrangement_.width)] += most;
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

void Executor::receive(const Action& action) {
  Message message = receivers_.at(link_of(action)).receive(poll_);
  if (message.micro_batch != action.micro_batch)
    throw ProtocolError(fmt::format("micro-batch {} was expected, {} came", action.micro_batch, message.micro_batch));
  message.value = to_device(message.value, stage(action.stage).device);
  Flight& now = flight(action);
  (action.direction == Direction::gradient ? now.gradients : now.arrived)[action.edge] = std::move(message);
}

void Executor::send(const Action& action) {
  Flight& now = flight(action);
  bool gradient = action.direction == Direction::gradient;
  auto& values = gradient ? now.input_gradients : now.outputs;
  auto value = values.find(action.edge);
  if (now.samples > 0 && value == values.end()) throw ConfigError("the plan sends what has not been computed");
  Message message{.micro_batch = action.micro_batch,
                  .count = gradient ? now.loss_count : static_cast<double>(now.samples),
                  .fingerprint = now.fingerprint};
  if (value != values.end()) {
    message.value = std::move(value->second);
    values.erase(value);
  }
  senders_.at(link_of(action)).send(message, poll_);
  if (gradient) end_if_over(action);
  if (!gradient && !options_.training && now.outputs.empty()) flights_.erase({action.stage, action.micro_batch});
}

void Executor::take_inputs(const Action& action, Flight& now) {
  Stage& here = stage(action.stage);
  if (here.incoming.empty()) {
    Sample sample = here.input(action.micro_batch);
    now.samples = sample.count;
    if (sample.count > 0 && reads_twice()) now.fingerprint = fingerprint(sample.value);
    now.inputs = {to_device(sample.value, here.device)};
    return;
  }
  now.inputs.clear();
  for (int edge : here.incoming) {
    auto message = now.arrived.find(edge);
    if (message == now.arrived.end())
      throw ConfigError(fmt::format("the plan has the forward before its input from stage {}",
                                    arrangement_.edges.at(static_cast<size_t>(edge)).from));
    now.samples = static_cast<int64_t>(message->second.count);
    now.fingerprint = message->second.fingerprint;
    now.inputs.push_back(std::move(message->second.value));
  }
  now.arrived.clear();
}

void Executor::compute(const Action& action, Flight& now, bool with_graph, bool again) {
  Stage& here = stage(action.stage);
  at::AutoGradMode grad_mode(with_graph);
  OwnRandomNumbers numbers(seed_of(options_.seed, here.index, options_.first_micro_batch + action.micro_batch),
                           here.device);
  std::vector<Value> inputs;
  now.entries.assign(now.inputs.size(), Entry());
  for (size_t i = 0; i < now.inputs.size(); ++i) {
    // The samples themselves have no gradients. What will be computed again must not be changed in place.
    Value given = here.recompute && !again && options_.training ? copied(now.inputs[i]) : now.inputs[i];
    inputs.push_back(here.incoming.empty() ? given : now.entries[i].enter(given));
  }
  std::vector<Value> outputs = here.forward(inputs);
  if (outputs.size() != here.outgoing.size() && !here.loss)
    throw ConfigError(
        fmt::format("{} gave {} values for {} later stages", here.name, outputs.size(), here.outgoing.size()));
  now.roots = Roots();
  auto add_root = [&](const at::Tensor& loss, double weight) {
    if (!loss.requires_grad()) return;
    now.roots.edges.push_back(torch::autograd::impl::gradient_edge(loss));
    now.roots.gradients.push_back(at::full_like(loss, weight));
  };
  if (here.auxiliary_losses) {
    for (const at::Tensor& loss : here.auxiliary_losses()) add_root(loss, static_cast<double>(now.samples));
  }
  if (here.loss) {
    Loss loss = here.loss(outputs, action.micro_batch, now.samples);
    now.loss_count = loss.count;
    add_root(loss.sum, 1);
    if (!again) record_.losses.add(action.micro_batch, loss.sum.detach(), loss.count);
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    int edge = here.outgoing[i];
    if (with_graph) now.exits[edge] = Exit(outputs[i]);
    if (!again) now.outputs[edge] = with_tensors(outputs[i], [](const at::Tensor& tensor) { return tensor.detach(); });
  }
}

void Executor::forward(const Action& action, Done& done) {
  Stage& here = stage(action.stage);
  Flight& now = flight(action);
  for (const Waiting& waiting : waiting_) {
    if (waiting.stage == &here)
      throw ConfigError(
          "clipping='global': the plan goes on before all stages of this rank have stepped; expected 'local'");
  }
  take_inputs(action, now);
  done.count = static_cast<double>(now.samples);
  if (now.samples == 0) {
    if (here.loss) now.loss_count = 0;
    if (here.versions && options_.training) here.versions->skip(action.version);
  } else {
    if (here.loss && here.input && !here.incoming.empty() && reads_twice()) {
      Sample own = here.input(action.micro_batch);
      if (own.count != now.samples || fingerprint(own.value) != now.fingerprint)
        throw ConfigError(fmt::format(
            "micro-batch {} of the last stage's batches is not the one that the first stage read: every rank "
            "must read equally seeded batches of equal number",
            action.micro_batch));
    }
    if (here.versions) {
      now.used = options_.training ? here.versions->before_forward(action.micro_batch, action.version, action.staleness)
                                   : Used{};
      if (!options_.training) here.versions->settle();
      if (here.gaps && options_.training) here.gaps->forward(action.micro_batch, now.used, here.versions->weights());
      done.used = now.used;
    }
    compute(action, now, options_.training && !here.recompute, false);
    if (!here.recompute) now.inputs.clear();
  }
  for (int edge : here.outgoing) {
    if (!is_local(edge)) continue;
    // A copy: the next stage may change it in place, and this one's graph may still need it.
    Message message{
        .micro_batch = action.micro_batch, .count = static_cast<double>(now.samples), .fingerprint = now.fingerprint};
    if (now.samples > 0) message.value = copied(now.outputs.at(edge));
    now.outputs.erase(edge);
    flights_[{arrangement_.edges[static_cast<size_t>(edge)].to, action.micro_batch}].arrived[edge] = std::move(message);
  }
  if (!options_.training && now.outputs.empty()) {
    bool sends = false;
    for (int edge : here.outgoing) sends |= !is_local(edge);
    if (!sends) flights_.erase({action.stage, action.micro_batch});
  }
}

void Executor::backward(const Action& action, Done& done) {
  Stage& here = stage(action.stage);
  Flight& now = flight(action);
  for (auto& [edge, message] : now.gradients) now.loss_count = message.count;
  done.count = now.loss_count;
  if (now.samples > 0) {
    if (here.versions) {
      if (here.gaps) here.gaps->backward(action.micro_batch, here.versions->weights());
      done.read = here.versions->before_backward(action.micro_batch, now.used);
    }
    // Put back after the backward: its graph may have saved them, and counts their changes.
    std::optional<KeptBuffers> buffers;
    if (here.recompute) {
      buffers.emplace(here.buffers ? here.buffers() : std::vector<at::Tensor>{});
      compute(action, now, true, true);
    }
    // The deepest stage's gradients first: a replay adds them in the same order.
    for (auto it = now.gradients.rbegin(); it != now.gradients.rend(); ++it) {
      if (!std::holds_alternative<std::monostate>(it->second.value.content))
        now.exits.at(it->first).add_to(now.roots, it->second.value);
    }
    now.exits.clear();
    now.inputs.clear();
    run_graph(action, now);
    done.split = now.later != nullptr;
    if (here.versions && !now.later) here.versions->after_backward(action.micro_batch, now.used, now.loss_count);
  }
  now.gradients.clear();
  for (size_t i = 0; i < here.incoming.size(); ++i) {
    int edge = here.incoming[i];
    Value gradients = now.samples > 0 ? now.entries[i].gradients() : Value{};
    if (is_local(edge)) {
      flights_[{arrangement_.edges[static_cast<size_t>(edge)].from, action.micro_batch}].gradients[edge] = {
          .micro_batch = action.micro_batch, .count = now.loss_count, .value = std::move(gradients)};
    } else {
      now.input_gradients[edge] = std::move(gradients);
    }
  }
  now.entries.clear();
  end_if_over(action);
}

void Executor::run_graph(const Action& action, Flight& now) {
  Roots roots = std::move(now.roots);
  now.roots = Roots();
  if (roots.edges.empty()) return;
  Stage& here = stage(action.stage);
  // In two parts only where nothing is loaded or put back between them.
  if (split_stages_.contains(here.index) && here.versions && here.versions->may_sum_later() && !here.recompute) {
    torch::autograd::edge_list inputs;
    for (const Entry& entry : now.entries) inputs.insert(inputs.end(), entry.ends().begin(), entry.ends().end());
    std::string why;
    now.later = SplitBackward::of(roots, inputs, why);
    if (!why.empty()) record_.whole_backwards.try_emplace(here.index, why);
  }
  if (now.later) return now.later->input_gradients();
  torch::autograd::Engine::get_default_engine().execute(roots.edges, roots.gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true, {});
}

// Nothing is left to do where the backward did it all.
void Executor::weight_gradients(const Action& action, Done& done) {
  auto found = flights_.find({action.stage, action.micro_batch});
  if (found == flights_.end() || !found->second.later) return;
  Flight& now = found->second;
  done.count = now.loss_count;
  done.split = true;
  std::exchange(now.later, nullptr)->weight_gradients();
  stage(action.stage).versions->after_backward(action.micro_batch, now.used, now.loss_count);
  end_if_over(action);
}

// After the backward: what is left of a micro-batch are gradients to send, and those of weights to compute.
void Executor::end_if_over(const Action& action) {
  Flight& now = flight(action);
  if (now.input_gradients.empty() && !now.later) flights_.erase({action.stage, action.micro_batch});
}

Ring Executor::ring_of(const Stage& stage) {
  Ring ring{.place = replica_, .members = arrangement_.replicas};
  if (arrangement_.replicas > 1) {
    ring.next = &senders_.at(wiring_.sum(stage.index, replica_));
    ring.previous = &receivers_.at(wiring_.sum(stage.index, before(replica_, arrangement_.replicas)));
  }
  return ring;
}

void Executor::step(const Action& action, Done& done) {
  Stage& here = stage(action.stage);
  if (!here.versions) return;
  Counts all = here.versions->summed();
  if (arrangement_.replicas > 1)
    all = sum_over_replicas(ring_of(here), here.versions->weights().gradients().flat(), all, poll_);
  here.versions->divide(all.count);
  if (!norms_) return step(here, all, here.clip > 0 ? here.versions->norm() : std::optional<double>(), here.clip, done);

  double norm = here.versions->norm();
  int64_t number = here.versions->steps();
  bool complete = norms_->tell(number, norm * norm, poll_);
  if (norms_->delay() > 0) {
    std::optional<double> whole = norms_->ask(number, poll_);
    return whole ? step(here, all, whole, here.clip, done) : step(here, all, norm, here.clip * here.clip_share, done);
  }
  waiting_.push_back({&here, all, record_.size()});
  if (!complete) return;
  std::optional<double> whole = norms_->ask(number, poll_);
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    step(*waiting.stage, waiting.all, whole, waiting.stage->clip, done);
    if (waiting.place < record_.size()) record_.step_later(waiting.place, done.stepped);
  }
}

void Executor::step(Stage& here, const Counts& all, std::optional<double> norm, double clip, Done& done) {
  Versions::Limit limit;
  if (norm) limit = {.norm = *norm, .scale = std::min(1.0, clip / (*norm + 1e-6))};
  done.stepped = here.versions->step(all, limit, options_.step_size);
  done.count = done.stepped.count;
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
  for (auto& [link, sender] : senders_) sender.level(cells[1 + links + link], interrupted_);
  for (auto& [link, receiver] : receivers_) receiver.level(cells[1 + link], interrupted_);
  alarms_->settle(interrupted_);
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
