#include "ddip/tensors/c10d_backend.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/comm/shm/share.h"

namespace ddip::tensors {
namespace {

using comm::shm::Collectives;
using Part = Collectives::Part;

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

const at::Tensor& on_cpu(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu())
    throw ConfigError(fmt::format("backend ddip works on CPU tensors so far, not on {}", tensor.device().str()));
  if (tensor.is_sparse()) throw ConfigError("this operation does not exist for sparse tensors");
  return tensor;
}

size_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

// The tensor's memory in one piece: its own if it is, else a copy that is written back at the end.
class Flat {
 public:
  explicit Flat(const at::Tensor& tensor, bool write_back)
      : tensor_(tensor), flat_(on_cpu(tensor).contiguous()), write_back_(write_back && !flat_.is_same(tensor)) {}
  // A new one with room for `tensor`, whose old content does not matter.
  static Flat output(const at::Tensor& tensor) {
    return tensor.is_contiguous() ? Flat(tensor, true)
                                  : Flat(tensor, at::empty_like(tensor, at::MemoryFormat::Contiguous));
  }
  void* data() const { return flat_.data_ptr(); }
  size_t bytes() const { return flat_.nbytes(); }
  void finish() {
    if (write_back_) tensor_.copy_(flat_);
  }

 private:
  Flat(const at::Tensor& tensor, at::Tensor flat)
      : tensor_(on_cpu(tensor)), flat_(std::move(flat)), write_back_(true) {}

  at::Tensor tensor_;
  at::Tensor flat_;
  bool write_back_;
};

void require_equal(const std::vector<at::Tensor>& list, int world, const at::Tensor& one, const char* what) {
  if (list.size() != static_cast<size_t>(world))
    throw ConfigError(fmt::format("{} needs {} tensors, one per rank, not {}", what, world, list.size()));
  for (const at::Tensor& tensor : list) {
    if (tensor.scalar_type() != one.scalar_type() || tensor.numel() != one.numel())
      throw ConfigError(fmt::format("{}: tensors of all ranks must have one size and type", what));
  }
}

at::Tensor joined(const std::vector<at::Tensor>& list) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : list) flat.push_back(on_cpu(tensor).reshape({-1}));
  return at::cat(flat);
}

void split_into(const at::Tensor& flat, const std::vector<at::Tensor>& list) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view_as(tensor));
    begin += tensor.numel();
  }
}

void all_reduce_one(Collectives& ranks, const at::Tensor& tensor, const c10d::ReduceOp& operation) {
  Flat flat(tensor, true);
  ranks.all_reduce(flat.data(), elements_in(tensor), typed(tensor, operation));
  flat.finish();
}

void all_gather_one(Collectives& ranks, const at::Tensor& output, const at::Tensor& input) {
  if (output.numel() != input.numel() * ranks.world() || output.scalar_type() != input.scalar_type())
    throw ConfigError(fmt::format("all_gather: the output needs {} elements, it has {}", input.numel() * ranks.world(),
                                  output.numel()));
  Flat in(input, false), out = Flat::output(output);
  ranks.all_gather(in.data(), out.data(), in.bytes());
  out.finish();
}

void all_gather_list(Collectives& ranks, const std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  require_equal(outputs, ranks.world(), input, "all_gather");
  at::Tensor all = at::empty({input.numel() * ranks.world()}, input.options());
  all_gather_one(ranks, all, input);
  split_into(all, outputs);
}

void reduce_scatter_one(Collectives& ranks, const at::Tensor& output, const at::Tensor& input,
                        const c10d::ReduceOp& operation) {
  if (input.numel() != output.numel() * ranks.world() || output.scalar_type() != input.scalar_type())
    throw ConfigError(fmt::format("reduce_scatter: the input needs {} elements, it has {}",
                                  output.numel() * ranks.world(), input.numel()));
  Flat in(input, false), out = Flat::output(output);
  ranks.reduce_scatter(in.data(), out.data(), elements_in(output), typed(output, operation));
  out.finish();
}

std::vector<Part> parts_of(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int world) {
  int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  if (sizes.empty() && rows % world != 0)
    throw ConfigError(fmt::format("all_to_all: {} rows cannot be divided among {} ranks", rows, world));
  if (!sizes.empty() && sizes.size() != static_cast<size_t>(world))
    throw ConfigError(fmt::format("all_to_all needs {} sizes, not {}", world, sizes.size()));
  size_t row = rows > 0 ? bytes_of(tensor) / static_cast<size_t>(rows) : 0;
  std::vector<Part> parts;
  size_t begin = 0;
  for (size_t rank = 0; rank < static_cast<size_t>(world); ++rank) {
    size_t count = static_cast<size_t>(sizes.empty() ? rows / world : sizes[rank]);
    parts.push_back({begin, count * row});
    begin += count * row;
  }
  if (begin != bytes_of(tensor)) throw ConfigError("all_to_all: the sizes do not add up to the tensor's");
  return parts;
}

std::vector<Part> parts_of(const std::vector<at::Tensor>& list, int world) {
  if (list.size() != static_cast<size_t>(world))
    throw ConfigError(fmt::format("all_to_all needs {} tensors, not {}", world, list.size()));
  std::vector<Part> parts;
  size_t begin = 0;
  for (const at::Tensor& tensor : list) {
    parts.push_back({begin, bytes_of(tensor)});
    begin += bytes_of(tensor);
  }
  return parts;
}

}  // namespace

class C10dBackend::OurWork : public c10d::Work {
 public:
  OurWork(int rank, c10d::OpType type, uint64_t sequence, Tensors result)
      : Work(rank, type),
        sequence_(sequence),
        result_(std::move(result)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override { return source_; }
  void abort() override { throw ConfigError("one operation cannot be aborted alone; abort the group"); }

  void end(std::exception_ptr error, int source = -1) {
    source_ = source;
    finish(error);
    if (error)
      future_->setErrorIfNeeded(error);
    else
      future_->markCompleted(c10::IValue(result_));
  }

 private:
  const uint64_t sequence_;
  Tensors result_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<int> source_ = -1;
};

C10dBackend::C10dBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         std::chrono::milliseconds timeout)
    : Backend(rank, size), options_(c10::make_intrusive<Options>(timeout)) {
  C10dStore keys(store);
  segment_ = std::make_unique<comm::shm::Segment>(comm::shm::share(keys, "ddip/segment", rank, size, kArenaBytes));
  collectives_ = std::make_unique<Collectives>(*segment_, rank, timeout);
  // Who is missing is waited for at the store, where an interrupt can end it; nobody watches over the segment yet.
  keys.set(fmt::format("ddip/here/{}", rank), "");
  for (int peer = 0; peer < size; ++peer) keys.get(fmt::format("ddip/here/{}", peer));
  collectives_->barrier();
  segment_->close_file();
  watch_ = std::make_unique<comm::shm::Watch>(*segment_, rank);
  thread_ = std::make_unique<WorkerThread>();
}

C10dBackend::~C10dBackend() {
  shutdown();
  thread_.reset();
  mail_.reset();
  watch_.reset();
}

void C10dBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  thread_->run([&] { collectives_->set_patience(timeout); });
}

C10dBackend::Work C10dBackend::start(c10d::OpType type, bool async, Tensors result,
                                     std::function<void(Collectives&)> body) {
  auto work = c10::make_intrusive<OurWork>(getRank(), type, ++sequence_, std::move(result));
  auto task = [this, work, body = std::move(body)] {
    std::exception_ptr error;
    try {
      body(*collectives_);
    } catch (...) {
      error = std::current_exception();
    }
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
  return start(c10d::OpType::COALESCED, true, result, [all](Collectives&) {
    for (const Work& work : all) work->wait();
  });
}

C10dBackend::Work C10dBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor tensor = on_cpu(only(tensors, "broadcast"));
  int root = static_cast<int>(options.rootRank);
  return start(c10d::OpType::BROADCAST, is_async(options), {tensor}, [tensor, root](Collectives& ranks) {
    Flat flat(tensor, ranks.rank() != root);
    ranks.broadcast(flat.data(), flat.bytes(), root);
    flat.finish();
  });
}

C10dBackend::Work C10dBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  at::Tensor tensor = on_cpu(only(tensors, "all_reduce"));
  return start(
      c10d::OpType::ALLREDUCE, is_async(options), {tensor},
      [tensor, operation = options.reduceOp](Collectives& ranks) { all_reduce_one(ranks, tensor, operation); });
}

// Every rank gets everybody's entries and adds them up in the order of the ranks.
C10dBackend::Work C10dBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor tensor = only(tensors, "all_reduce");
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM) throw ConfigError("sparse tensors can only be summed");
  return start(c10d::OpType::_ALLREDUCE_SPARSE, is_async(options), {tensor}, [tensor](Collectives& ranks) {
    at::Tensor mine = tensor.coalesce();
    int64_t count = mine._nnz();
    std::vector<int64_t> counts(static_cast<size_t>(ranks.world()));
    ranks.all_gather(&count, counts.data(), sizeof count);
    int64_t most = *std::max_element(counts.begin(), counts.end());
    auto padded = [&](const at::Tensor& part) {
      std::vector<int64_t> shape = part.sizes().vec();
      shape[0] = most;
      at::Tensor whole = at::zeros(shape, part.options());
      whole.narrow(0, 0, count).copy_(part);
      return whole;
    };
    at::Tensor indices = padded(mine.indices().t().contiguous()), values = padded(mine.values());
    auto gathered = [&](const at::Tensor& part) {
      std::vector<int64_t> shape = part.sizes().vec();
      shape.insert(shape.begin(), ranks.world());
      at::Tensor all = at::empty(shape, part.options());
      ranks.all_gather(part.data_ptr(), all.data_ptr(), part.nbytes());
      return all;
    };
    at::Tensor all_indices = gathered(indices), all_values = gathered(values);
    at::Tensor sum;
    for (int rank = 0; rank < ranks.world(); ++rank) {
      int64_t here = counts[static_cast<size_t>(rank)];
      at::Tensor part = at::sparse_coo_tensor(all_indices[rank].narrow(0, 0, here).t(),
                                              all_values[rank].narrow(0, 0, here), tensor.sizes(), tensor.options());
      sum = sum.defined() ? sum + part : part;
    }
    tensor.copy_(sum);
  });
}

C10dBackend::Work C10dBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  for (const at::Tensor& tensor : tensors) on_cpu(tensor);
  return start(c10d::OpType::ALLREDUCE_COALESCED, is_async(options), tensors,
               [tensors, operation = options.reduceOp](Collectives& ranks) {
                 for (const at::Tensor& tensor : tensors) all_reduce_one(ranks, tensor, operation);
               });
}

C10dBackend::Work C10dBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor tensor = on_cpu(only(tensors, "reduce"));
  int root = static_cast<int>(options.rootRank);
  return start(c10d::OpType::REDUCE, is_async(options), {tensor},
               [tensor, root, operation = options.reduceOp](Collectives& ranks) {
                 Flat flat(tensor, ranks.rank() == root);
                 ranks.reduce(flat.data(), elements_in(tensor), typed(tensor, operation), root);
                 flat.finish();
               });
}

C10dBackend::Work C10dBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  at::Tensor input = on_cpu(only(inputs, "all_gather"));
  if (outputs.size() != 1) throw ConfigError("all_gather takes one list of outputs");
  return start(c10d::OpType::ALLGATHER, is_async(options), outputs[0],
               [list = outputs[0], input](Collectives& ranks) { all_gather_list(ranks, list, input); });
}

C10dBackend::Work C10dBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::AllgatherOptions& options) {
  on_cpu(output), on_cpu(input);
  return start(c10d::OpType::_ALLGATHER_BASE, is_async(options), {output},
               [output, input](Collectives& ranks) { all_gather_one(ranks, output, input); });
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
  return start(c10d::OpType::ALLGATHER_COALESCED, is_async(options), result, [outputs, inputs](Collectives& ranks) {
    for (size_t index = 0; index < inputs.size(); ++index) {
      Tensors list;
      for (const Tensors& of_rank : outputs) list.push_back(of_rank[index]);
      all_gather_list(ranks, list, inputs[index]);
    }
  });
}

C10dBackend::Work C10dBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                               const c10d::AllgatherOptions& options) {
  if (outputs.size() != inputs.size()) throw ConfigError("all_gather: as many outputs as inputs are needed");
  return start(c10d::OpType::ALLGATHER_COALESCED, is_async(options), outputs, [outputs, inputs](Collectives& ranks) {
    for (size_t index = 0; index < inputs.size(); ++index) all_gather_one(ranks, outputs[index], inputs[index]);
  });
}

C10dBackend::Work C10dBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  at::Tensor input = on_cpu(only(inputs, "gather"));
  int root = static_cast<int>(options.rootRank);
  bool is_root = root == getRank();
  if (outputs.size() != (is_root ? 1 : 0)) throw ConfigError("gather: the root alone gives a list of outputs");
  Tensors list = is_root ? outputs[0] : Tensors{};
  if (is_root) require_equal(list, getSize(), input, "gather");
  return start(c10d::OpType::GATHER, is_async(options), list, [list, input, root](Collectives& ranks) {
    Flat in(input, false);
    at::Tensor all;
    if (ranks.rank() == root) all = at::empty({input.numel() * ranks.world()}, input.options());
    ranks.gather(in.data(), all.defined() ? all.data_ptr() : nullptr, in.bytes(), root);
    if (all.defined()) split_into(all, list);
  });
}

C10dBackend::Work C10dBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  at::Tensor output = on_cpu(only(outputs, "scatter"));
  int root = static_cast<int>(options.rootRank);
  bool is_root = root == getRank();
  if (inputs.size() != (is_root ? 1 : 0)) throw ConfigError("scatter: the root alone gives a list of inputs");
  Tensors list = is_root ? inputs[0] : Tensors{};
  if (is_root) require_equal(list, getSize(), output, "scatter");
  return start(c10d::OpType::SCATTER, is_async(options), {output}, [list, output, root](Collectives& ranks) {
    at::Tensor all;
    if (ranks.rank() == root) all = joined(list);
    Flat out = Flat::output(output);
    ranks.scatter(all.defined() ? all.data_ptr() : nullptr, out.data(), out.bytes(), root);
    out.finish();
  });
}

C10dBackend::Work C10dBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                              const c10d::ReduceScatterOptions& options) {
  at::Tensor output = on_cpu(only(outputs, "reduce_scatter"));
  if (inputs.size() != 1) throw ConfigError("reduce_scatter takes one list of inputs");
  require_equal(inputs[0], getSize(), output, "reduce_scatter");
  return start(c10d::OpType::REDUCE_SCATTER, is_async(options), {output},
               [list = inputs[0], output, operation = options.reduceOp](Collectives& ranks) {
                 reduce_scatter_one(ranks, output, joined(list), operation);
               });
}

C10dBackend::Work C10dBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::ReduceScatterOptions& options) {
  on_cpu(output), on_cpu(input);
  return start(c10d::OpType::_REDUCE_SCATTER_BASE, is_async(options), {output},
               [output, input, operation = options.reduceOp](Collectives& ranks) {
                 reduce_scatter_one(ranks, output, input, operation);
               });
}

C10dBackend::Work C10dBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                               const c10d::ReduceScatterOptions& options) {
  if (outputs.size() != inputs.size()) throw ConfigError("reduce_scatter: as many outputs as inputs are needed");
  return start(c10d::OpType::REDUCE_SCATTER, is_async(options), outputs,
               [outputs, inputs, operation = options.reduceOp](Collectives& ranks) {
                 for (size_t index = 0; index < inputs.size(); ++index)
                   reduce_scatter_one(ranks, outputs[index], inputs[index], operation);
               });
}

C10dBackend::Work C10dBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                                             std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) {
  on_cpu(output), on_cpu(input);
  auto to = parts_of(input, input_sizes, getSize()), from = parts_of(output, output_sizes, getSize());
  return start(c10d::OpType::ALLTOALL_BASE, is_async(options), {output}, [output, input, to, from](Collectives& ranks) {
    Flat in(input, false), out = Flat::output(output);
    ranks.all_to_all(in.data(), to, out.data(), from);
    out.finish();
  });
}

C10dBackend::Work C10dBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  auto to = parts_of(inputs, getSize()), from = parts_of(outputs, getSize());
  return start(c10d::OpType::ALLTOALL, is_async(options), outputs, [outputs, inputs, to, from](Collectives& ranks) {
    at::Tensor out = joined(inputs);
    size_t bytes = from.back().begin + from.back().bytes;
    at::Tensor in = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    ranks.all_to_all(out.data_ptr(), to, in.data_ptr(), from);
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      if (from[rank].bytes == 0) continue;
      at::Tensor part = in.narrow(0, static_cast<int64_t>(from[rank].begin), static_cast<int64_t>(from[rank].bytes));
      outputs[rank].copy_(part.clone().view(outputs[rank].scalar_type()).view_as(outputs[rank]));
    }
  });
}

comm::shm::Mail& C10dBackend::mail() {
  std::lock_guard lock(mail_mutex_);
  if (!mail_) mail_ = collectives_->open_mail();
  return *mail_;
}

C10dBackend::Work C10dBackend::send(Tensors& tensors, int to, int tag) {
  at::Tensor tensor = on_cpu(only(tensors, "send")).contiguous();
  auto work = c10::make_intrusive<OurWork>(getRank(), c10d::OpType::SEND, 0, Tensors{});
  mail().send(to, tag, tensor.data_ptr(), tensor.nbytes(),
              [work, tensor](std::exception_ptr error, int) { work->end(error); });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

C10dBackend::Work C10dBackend::receive(c10d::OpType type, Tensors& tensors, int from, int tag) {
  at::Tensor tensor = on_cpu(only(tensors, "recv"));
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
  return receive(c10d::OpType::RECVANYSOURCE, tensors, comm::shm::kAnyRank, tag);
}

C10dBackend::Work C10dBackend::barrier(const c10d::BarrierOptions& options) {
  return start(c10d::OpType::BARRIER, is_async(options), {}, [](Collectives& ranks) { ranks.barrier(); });
}

std::shared_ptr<std::byte> C10dBackend::allocate(size_t bytes) {
  std::shared_ptr<std::byte> memory;
  start(c10d::OpType::UNKNOWN, false, {}, [&](Collectives& ranks) { memory = ranks.allocate(bytes); })->wait();
  return memory;
}

void C10dBackend::abort() { segment_->poison(comm::shm::kAborted); }

void C10dBackend::shutdown() { segment_->leave(getRank()); }

}  // namespace ddip::tensors
