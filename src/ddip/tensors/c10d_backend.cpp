#include "ddip/tensors/c10d_backend.h"

#include <fmt/format.h>

#include <cstring>

#include "ddip/base/error.h"
#include "ddip/comm/shm/share.h"

namespace ddip::tensors {
namespace {

// Virtual; pages that nobody touches cost nothing.
constexpr size_t kArenaBytes = size_t{1} << 26;

class C10dStore : public comm::Store {
 public:
  explicit C10dStore(const c10::intrusive_ptr<c10d::Store>& store) : store_(store) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& key) override {
    std::vector<uint8_t> value = store_->get(key);
    return {value.begin(), value.end()};
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// Older versions of torch do not say whether the caller waits at once.
template <typename Options>
bool is_async(const Options& options) {
  if constexpr (requires { options.asyncOp; })
    return options.asyncOp;
  else
    return true;
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what) {
  if (tensors.size() != 1) throw ConfigError(fmt::format("{} takes one tensor, not {}", what, tensors.size()));
  return tensors[0];
}

// The same memory, but not the tensor that Python has. Who waits is told before our thread lets go of a work, and may
// have ended Python by then: letting go of a tensor that Python has would end the process with an error.
at::Tensor without_python(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor : tensor.detach();  // a sparse one gets other memory
}

std::vector<c10::Device> gpus_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> found;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu() && std::find(found.begin(), found.end(), tensor.device()) == found.end())
      found.push_back(tensor.device());
  }
  return found;
}

// What the caller's stream was asked to do before, and may still be doing. The caller's own thread need not wait for
// it.
class Before {
 public:
  explicit Before(c10::Device device) : caller_(std::this_thread::get_id()) {
    if (device.is_cpu()) return;
    c10::impl::VirtualGuardImpl guard(device.type());
    event_ = std::make_shared<c10::Event>(device.type());
    event_->record(guard.getStream(device));
  }
  void wait() const {
    if (event_ && std::this_thread::get_id() != caller_) event_->synchronize();
  }

 private:
  std::thread::id caller_;
  std::shared_ptr<c10::Event> event_;
};

}  // namespace

class C10dBackend::OurWork : public c10d::Work {
 public:
  OurWork(int rank, c10d::OpType type, uint64_t sequence, Tensors result)
      : Work(rank, type),
        sequence_(sequence),
        result_(std::move(result)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                         gpus_of(result_))) {}

  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override { return source_; }
  void abort() override { throw ConfigError("one operation cannot be aborted alone; abort the group"); }

  void end(std::exception_ptr error, int source = -1) {
    source_ = source;
    // First, so that it is done when wait() returns, as torch's own backends have it.
    if (error)
      future_->setErrorIfNeeded(error);
    else
      future_->markCompleted(c10::IValue(result_));
    finish(error);
  }

 private:
  const uint64_t sequence_;
  Tensors result_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<int> source_ = -1;
};

struct C10dBackend::Window {
  std::mutex mutex;
  const C10dBackend* backend = nullptr;  // null: it is gone

  static size_t look(void* object, char* out, size_t size) {
    auto* window = static_cast<Window*>(object);
    std::lock_guard lock(window->mutex);
    if (!window->backend || !window->backend->collectives_->is_waiting()) return 0;
    std::string text = window->backend->describe();
    size_t length = std::min(size, text.size());
    std::memcpy(out, text.data(), length);
    return length;
  }
};

C10dBackend::C10dBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         std::chrono::milliseconds timeout)
    : Backend(rank, size), options_(c10::make_intrusive<Options>("ddip", timeout)), window_(new Window) {
  C10dStore keys(store);
  shared_ = std::make_unique<Shared>(Shared{comm::shm::share(keys, "ddip/segment", rank, size, kArenaBytes), nullptr});
  auto ranks = std::make_unique<comm::shm::Collectives>(shared_->segment, rank, timeout);
  operations_ = std::make_unique<Operations>(*ranks, ranks.get());
  collectives_ = std::move(ranks);
  // Who is missing is waited for at the store, where an interrupt can end it; nobody watches over the segment yet. Who
  // was there may be lost by the time that the last one comes.
  keys.set(fmt::format("ddip/here/{}", rank), "");
  for (int peer = 0; peer < size; ++peer) keys.get(fmt::format("ddip/here/{}", peer));
  shared_->watch = std::make_unique<comm::shm::Watch>(shared_->segment, rank);
  collectives_->barrier();
  shared_->segment.close_file();
  thread_ = std::make_unique<WorkerThread>();
  std::lock_guard lock(window_->mutex);
  window_->backend = this;
}

C10dBackend::C10dBackend(std::unique_ptr<comm::Collectives> ranks, const std::string& name,
                         std::chrono::milliseconds timeout)
    : Backend(ranks->rank(), ranks->world()),
      options_(c10::make_intrusive<Options>(name, timeout)),
      collectives_(std::move(ranks)),
      operations_(std::make_unique<Operations>(*collectives_)),
      window_(new Window),
      thread_(std::make_unique<WorkerThread>()) {
  std::lock_guard lock(window_->mutex);
  window_->backend = this;
}

Describer C10dBackend::describer() const { return {window_, &Window::look}; }

C10dBackend::~C10dBackend() {
  {
    std::lock_guard lock(window_->mutex);
    window_->backend = nullptr;
  }
  shutdown();
  thread_.reset();
  mail_.reset();
  if (shared_) shared_->watch.reset();
}

void C10dBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  thread_->run([&] {
    std::lock_guard lock(mail_mutex_);  // who opens the mail meanwhile asks for the patience
    collectives_->set_patience(timeout);
    if (mail_) mail_->set_patience(timeout);
  });
}

C10dBackend::Work C10dBackend::start(c10d::OpType type, bool async, Tensors result,
                                     std::function<void(Operations&)> body, std::optional<at::Device> device) {
  if (!device && !result.empty()) device = result[0].device();
  for (at::Tensor& tensor : result) tensor = without_python(tensor);
  auto work = c10::make_intrusive<OurWork>(getRank(), type, ++sequence_, std::move(result));
  auto task = [this, work, before = Before(device.value_or(at::kCPU)), body = std::move(body)]() mutable {
    std::exception_ptr error;
    try {
      before.wait();
      body(*operations_);
    } catch (...) {
      error = std::current_exception();
    }
    body = nullptr;  // with the tensors that Python has
    work->end(error);
  };
  if (async || coalescing_)
    thread_->post(std::move(task));
  else
    thread_->run(task);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void C10dBackend::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

// The works of one batch end in their order, except messages; so one more work waits for all of them.
C10dBackend::Work C10dBackend::endCoalescing() {
  coalescing_ = false;
  Tensors result;
  for (const Work& work : coalesced_) {
    for (const at::Tensor& tensor : work->result()) result.push_back(tensor);
  }
  auto all = std::exchange(coalesced_, {});
  return start(c10d::OpType::COALESCED, true, result, [all](Operations&) {
    for (const Work& work : all) work->wait();
  });
}

C10dBackend::Work C10dBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor tensor = require_usable(only(tensors, "broadcast"));
  int root = static_cast<int>(options.rootRank);
  return start(c10d::OpType::BROADCAST, is_async(options), {tensor},
               [tensor, root](Operations& ranks) { ranks.broadcast(tensor, root); });
}

C10dBackend::Work C10dBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  at::Tensor tensor = require_usable(only(tensors, "all_reduce"));
  return start(c10d::OpType::ALLREDUCE, is_async(options), {tensor},
               [tensor, operation = options.reduceOp](Operations& ranks) { ranks.all_reduce(tensor, operation); });
}

C10dBackend::Work C10dBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor tensor = only(tensors, "all_reduce");
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM) throw ConfigError("sparse tensors can only be summed");
  return start(c10d::OpType::_ALLREDUCE_SPARSE, is_async(options), {tensor},
               [tensor](Operations& ranks) { ranks.all_reduce_sparse(tensor); });
}

C10dBackend::Work C10dBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  for (const at::Tensor& tensor : tensors) require_usable(tensor);
  return start(c10d::OpType::ALLREDUCE_COALESCED, is_async(options), tensors,
               [tensors, operation = options.reduceOp](Operations& ranks) {
                 for (const at::Tensor& tensor : tensors) ranks.all_reduce(tensor, operation);
               });
}

C10dBackend::Work C10dBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor tensor = require_usable(only(tensors, "reduce"));
  int root = static_cast<int>(options.rootRank);
  return start(
      c10d::OpType::REDUCE, is_async(options), {tensor},
      [tensor, root, operation = options.reduceOp](Operations& ranks) { ranks.reduce(tensor, operation, root); });
}

C10dBackend::Work C10dBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  at::Tensor input = require_usable(only(inputs, "all_gather"));
  if (outputs.size() != 1) throw ConfigError("all_gather takes one list of outputs");
  return start(c10d::OpType::ALLGATHER, is_async(options), outputs[0],
               [list = outputs[0], input](Operations& ranks) { ranks.all_gather(list, input); });
}

C10dBackend::Work C10dBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::AllgatherOptions& options) {
  require_usable(output), require_usable(input);
  return start(c10d::OpType::_ALLGATHER_BASE, is_async(options), {output},
               [output, input](Operations& ranks) { ranks.all_gather(output, input); });
}

C10dBackend::Work C10dBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                   const c10d::AllgatherOptions& options) {
  if (outputs.size() != static_cast<size_t>(getSize()))
    throw ConfigError(fmt::format("all_gather_coalesced needs {} lists, one per rank", getSize()));
  Tensors result;
  for (const Tensors& list : outputs) {
    if (list.size() != inputs.size()) throw ConfigError("all_gather_coalesced: lists of different length");
    result.insert(result.end(), list.begin(), list.end());
  }
  return start(c10d::OpType::ALLGATHER_COALESCED, is_async(options), result, [outputs, inputs](Operations& ranks) {
    for (size_t index = 0; index < inputs.size(); ++index) {
      Tensors list;
      for (const Tensors& of_rank : outputs) list.push_back(of_rank[index]);
      ranks.all_gather(list, inputs[index]);
    }
  });
}

C10dBackend::Work C10dBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                               const c10d::AllgatherOptions& options) {
  if (outputs.size() != inputs.size()) throw ConfigError("all_gather: as many outputs as inputs are needed");
  return start(c10d::OpType::ALLGATHER_COALESCED, is_async(options), outputs, [outputs, inputs](Operations& ranks) {
    for (size_t index = 0; index < inputs.size(); ++index) ranks.all_gather(outputs[index], inputs[index]);
  });
}

C10dBackend::Work C10dBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  at::Tensor input = require_usable(only(inputs, "gather"));
  int root = static_cast<int>(options.rootRank);
  bool is_root = root == getRank();
  if (outputs.size() != (is_root ? 1 : 0)) throw ConfigError("gather: the root alone gives a list of outputs");
  Tensors list = is_root ? outputs[0] : Tensors{};
  if (is_root) require_equal(list, getSize(), input, "gather");
  return start(
      c10d::OpType::GATHER, is_async(options), list,
      [list, input, root](Operations& ranks) { ranks.gather(list, input, root); }, input.device());
}

C10dBackend::Work C10dBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  at::Tensor output = require_usable(only(outputs, "scatter"));
  int root = static_cast<int>(options.rootRank);
  bool is_root = root == getRank();
  if (inputs.size() != (is_root ? 1 : 0)) throw ConfigError("scatter: the root alone gives a list of inputs");
  Tensors list = is_root ? inputs[0] : Tensors{};
  if (is_root) require_equal(list, getSize(), output, "scatter");
  return start(c10d::OpType::SCATTER, is_async(options), {output},
               [list, output, root](Operations& ranks) { ranks.scatter(output, list, root); });
}

C10dBackend::Work C10dBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                              const c10d::ReduceScatterOptions& options) {
  at::Tensor output = require_usable(only(outputs, "reduce_scatter"));
  if (inputs.size() != 1) throw ConfigError("reduce_scatter takes one list of inputs");
  require_equal(inputs[0], getSize(), output, "reduce_scatter");
  return start(c10d::OpType::REDUCE_SCATTER, is_async(options), {output},
               [list = inputs[0], output, operation = options.reduceOp](Operations& ranks) {
                 ranks.reduce_scatter(output, list, operation);
               });
}

C10dBackend::Work C10dBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::ReduceScatterOptions& options) {
  require_usable(output), require_usable(input);
  return start(c10d::OpType::_REDUCE_SCATTER_BASE, is_async(options), {output},
               [output, input, operation = options.reduceOp](Operations& ranks) {
                 ranks.reduce_scatter(output, input, operation);
               });
}

C10dBackend::Work C10dBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                               const c10d::ReduceScatterOptions& options) {
  if (outputs.size() != inputs.size()) throw ConfigError("reduce_scatter: as many outputs as inputs are needed");
  return start(c10d::OpType::REDUCE_SCATTER, is_async(options), outputs,
               [outputs, inputs, operation = options.reduceOp](Operations& ranks) {
                 for (size_t index = 0; index < inputs.size(); ++index)
                   ranks.reduce_scatter(outputs[index], inputs[index], operation);
               });
}

C10dBackend::Work C10dBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                                             std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) {
  require_usable(output), require_usable(input);
  return start(c10d::OpType::ALLTOALL_BASE, is_async(options), {output},
               [output, input, output_sizes, input_sizes](Operations& ranks) {
                 ranks.all_to_all(output, input, output_sizes, input_sizes);
               });
}

C10dBackend::Work C10dBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return start(c10d::OpType::ALLTOALL, is_async(options), outputs,
               [outputs, inputs](Operations& ranks) { ranks.all_to_all(outputs, inputs); });
}

comm::Mail& C10dBackend::mail() {
  std::lock_guard lock(mail_mutex_);
  if (!mail_) mail_ = collectives_->open_mail();
  return *mail_;
}

C10dBackend::Work C10dBackend::send(Tensors& tensors, int to, int tag) {
  at::Tensor tensor = without_python(require_usable(only(tensors, "send")).cpu().contiguous());
  auto work = c10::make_intrusive<OurWork>(getRank(), c10d::OpType::SEND, 0, Tensors{});
  mail().send(to, tag, tensor.data_ptr(), tensor.nbytes(),
              [work, tensor](std::exception_ptr error, int) { work->end(error); });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

C10dBackend::Work C10dBackend::receive(c10d::OpType type, Tensors& tensors, int from, int tag) {
  at::Tensor tensor = without_python(require_usable(only(tensors, "recv")));
  auto work = c10::make_intrusive<OurWork>(getRank(), type, 0, Tensors{tensor});
  auto flat = std::make_shared<Flat>(Flat::output(tensor));
  mail().receive(from, tag, flat->data(), flat->bytes(), [work, flat](std::exception_ptr error, int peer) {
    if (!error) flat->finish();
    work->end(error, peer);
  });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

C10dBackend::Work C10dBackend::recv(Tensors& tensors, int from, int tag) {
  return receive(c10d::OpType::RECV, tensors, from, tag);
}

C10dBackend::Work C10dBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(c10d::OpType::RECVANYSOURCE, tensors, comm::kAnyRank, tag);
}

C10dBackend::Work C10dBackend::barrier(const c10d::BarrierOptions& options) {
  return start(c10d::OpType::BARRIER, is_async(options), {}, [](Operations& ranks) { ranks.barrier(); });
}

std::shared_ptr<std::byte> C10dBackend::allocate(size_t bytes) {
  std::shared_ptr<std::byte> memory;
  start(c10d::OpType::UNKNOWN, false, {}, [&](Operations& ranks) { memory = ranks.allocate(bytes); })->wait();
  return memory;
}

void C10dBackend::abort() {
  if (!shared_) throw ConfigError(fmt::format("backend {} cannot be aborted", getBackendName()));
  shared_->segment.poison(comm::shm::kAborted);
}

void C10dBackend::shutdown() {
  if (shared_) shared_->segment.leave(getRank());
}

}  // namespace ddip::tensors
