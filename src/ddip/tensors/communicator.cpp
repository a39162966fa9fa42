#include "ddip/tensors/communicator.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/tensors/c10d_backend.h"
#include "ddip/tensors/elements.h"

namespace ddip::tensors {
namespace {

c10d::ReduceOp operation_of(comm::Reduction reduction) {
  switch (reduction) {
    case comm::Reduction::sum: return c10d::ReduceOp::SUM;
    case comm::Reduction::mean: return c10d::ReduceOp::AVG;
    case comm::Reduction::min: return c10d::ReduceOp::MIN;
    case comm::Reduction::max: return c10d::ReduceOp::MAX;
    case comm::Reduction::product: return c10d::ReduceOp::PRODUCT;
    case comm::Reduction::bit_and: return c10d::ReduceOp::BAND;
    case comm::Reduction::bit_or: return c10d::ReduceOp::BOR;
    case comm::Reduction::bit_xor: return c10d::ReduceOp::BXOR;
    case comm::Reduction::scaled_sum: break;
  }
  throw ConfigError("a scaled sum needs its factor: scale the tensor, then sum");
}

// Newer versions of torch are told that the caller waits at once, which saves a change of threads.
template <typename Options>
Options waiting(Options options) {
  if constexpr (requires { options.asyncOp; }) options.asyncOp = false;
  return options;
}

// torch's backends write to a tensor as if it were in one piece, whether it is or not: a copy that is, written back.
class Whole {
 public:
  Whole(const at::Tensor& tensor, bool ours)
      : tensor_(tensor), whole_(ours || tensor.is_sparse() ? tensor : tensor.contiguous()) {}
  const at::Tensor& get() const { return whole_; }
  void finish() {
    if (!whole_.is_same(tensor_)) tensor_.copy_(whole_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor whole_;
};

}  // namespace

struct Communicator::Window {
  const std::string backend;
  std::atomic<const char*> operation = nullptr;  // null: nobody waits

  static size_t look(void* object, char* out, size_t size) {
    auto* window = static_cast<Window*>(object);
    const char* operation = window->operation;
    if (!operation) return 0;
    std::string text = fmt::format("{} of backend {}", operation, window->backend);
    return text.copy(out, size);
  }
};

Communicator::Communicator(c10::intrusive_ptr<c10d::Backend> backend, std::string name, std::string reason)
    : backend_(std::move(backend)),
      ours_(dynamic_cast<C10dBackend*>(backend_.get())),
      name_(std::move(name)),
      reason_(std::move(reason)),
      window_(new Window{name_}) {}

Describer Communicator::describer() const { return {window_, &Window::look}; }

void Communicator::wait(const char* operation, const Work& work) {
  struct Inside {
    std::atomic<const char*>& now;
    ~Inside() { now = nullptr; }
  } inside{window_->operation};
  inside.now = operation;
  if (work) work->wait();  // NCCL gives none when the caller waits at once: the operation is on the caller's own stream
}

Capabilities Communicator::capabilities() const {
  if (ours_) return ours_->capabilities();
  return {.identical_bits = true};
}

// Not every backend of torch's looks: some wait without end for a rank that is not there.
void Communicator::require_peer(int peer) const {
  if (peer < 0 || peer >= world() || peer == rank())
    throw ConfigError(fmt::format("rank {} cannot exchange messages with rank {}", rank(), peer));
}

void Communicator::require_whole(const at::Tensor& tensor) const {
  if (!ours_ && !tensor.is_sparse() && !tensor.is_contiguous())
    throw ConfigError(fmt::format("backend {} takes contiguous tensors only here: give tensor.contiguous()", name_));
}

at::Tensor Communicator::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  // On a GPU a copy costs less than the second meeting that reducing in place would need.
  if (!capabilities().shared_tensors || !options.device().is_cpu()) return at::empty(sizes, options);
  size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  std::shared_ptr<std::byte> memory = ours_->allocate(bytes);
  void* data = memory.get();
  return at::from_blob(data, sizes, [memory](void*) {}, options);
}

Communicator::Work Communicator::start_all_reduce(const at::Tensor& tensor, Reduction reduction) {
  if (!ours_) comm::require_reducible({element_of(tensor), reduction});
  require_whole(tensor);
  Tensors tensors{tensor};
  c10d::AllreduceOptions options;
  if (reduction == Reduction::mean && !ours_ && backend_->getBackendName() != "nccl") {
    tensors[0].div_(world());  // torch's Gloo knows no mean
    reduction = Reduction::sum;
  }
  options.reduceOp = operation_of(reduction);
  return backend_->allreduce(tensors, options);
}

void Communicator::all_reduce(const at::Tensor& tensor, Reduction reduction) {
  if (!ours_) {
    Whole whole(tensor, false);
    wait("all_reduce", start_all_reduce(whole.get(), reduction));
    return whole.finish();
  }
  Tensors tensors{tensor};
  auto options = waiting(c10d::AllreduceOptions());
  options.reduceOp = operation_of(reduction);
  wait("all_reduce", backend_->allreduce(tensors, options));
}

void Communicator::broadcast(const at::Tensor& tensor, int root) {
  comm::require_root(root, world());
  Whole whole(tensor, ours_);
  Tensors tensors{whole.get()};
  auto options = waiting(c10d::BroadcastOptions());
  options.rootRank = root;
  wait("broadcast", backend_->broadcast(tensors, options));
  whole.finish();
}

void Communicator::reduce(const at::Tensor& tensor, int root, Reduction reduction) {
  comm::require_root(root, world());
  Whole whole(tensor, ours_);
  Tensors tensors{whole.get()};
  auto options = waiting(c10d::ReduceOptions());
  options.rootRank = root;
  options.reduceOp = operation_of(reduction);
  wait("reduce", backend_->reduce(tensors, options));
  whole.finish();
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world());
  at::Tensor all = at::empty(sizes, tensor.options());
  at::Tensor flat = all.view({-1}), mine = tensor.contiguous().view({-1});
  wait("all_gather", backend_->_allgather_base(flat, mine, waiting(c10d::AllgatherOptions())));
  return all;
}

Communicator::Tensors Communicator::gather(const at::Tensor& tensor, int root) {
  comm::require_root(root, world());
  Tensors inputs{tensor}, list;
  std::vector<Tensors> outputs;
  if (rank() == root) {
    for (int peer = 0; peer < world(); ++peer) list.push_back(at::empty_like(tensor));
    outputs.push_back(list);
  }
  auto options = waiting(c10d::GatherOptions());
  options.rootRank = root;
  wait("gather", backend_->gather(outputs, inputs, options));
  return list;
}

void Communicator::scatter(const at::Tensor& out, const Tensors& list, int root) {
  comm::require_root(root, world());
  require_whole(out);
  Tensors outputs{out};
  std::vector<Tensors> inputs;
  if (rank() == root) inputs.push_back(list);
  auto options = waiting(c10d::ScatterOptions());
  options.rootRank = root;
  wait("scatter", backend_->scatter(outputs, inputs, options));
}

void Communicator::reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduction reduction) {
  require_whole(out);
  require_whole(in);
  at::Tensor output = out, input = in;
  auto options = waiting(c10d::ReduceScatterOptions());
  options.reduceOp = operation_of(reduction);
  wait("reduce_scatter", backend_->_reduce_scatter_base(output, input, options));
}

void Communicator::all_to_all(const at::Tensor& out, const at::Tensor& in) {
  require_whole(out);
  require_whole(in);
  at::Tensor output = out, input = in;
  std::vector<int64_t> even;
  wait("all_to_all", backend_->alltoall_base(output, input, even, even, waiting(c10d::AllToAllOptions())));
}

void Communicator::barrier() { wait("barrier", backend_->barrier(waiting(c10d::BarrierOptions()))); }

Communicator::Work Communicator::start_send(const at::Tensor& tensor, int to, int tag) {
  require_peer(to);
  require_whole(tensor);
  Tensors tensors{tensor};
  if (watcher_) watcher_(true, to, tag, tensor);
  return backend_->send(tensors, to, tag);
}

Communicator::Work Communicator::start_receive(const at::Tensor& tensor, int from, int tag) {
  require_peer(from);
  require_whole(tensor);
  Tensors tensors{tensor};
  if (watcher_) watcher_(false, from, tag, tensor);
  return backend_->recv(tensors, from, tag);
}

void Communicator::abort() {
  if (!ours_) throw ConfigError(fmt::format("backend {} cannot be aborted", name_));
  ours_->abort();
}

WorkerThread& Communicator::thread() {
  std::lock_guard lock(mutex_);
  if (!thread_) thread_ = std::make_unique<WorkerThread>();
  return *thread_;
}

std::string Communicator::describe() const { return ours_ ? ours_->describe() : ""; }

std::vector<double> Communicator::waited() const { return ours_ ? ours_->waited() : std::vector<double>{}; }

}  // namespace ddip::tensors
