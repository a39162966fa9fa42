// What a rank does together with the others, on tensors: one contract over our own backend and any group of torch's.
// Calls return when done; `start` gives a handle instead. All ranks make the same calls in the same order.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddip/base/describer.h"
#include "ddip/comm/collectives.h"
#include "ddip/tensors/torch.h"
#include "ddip/tensors/worker_thread.h"

namespace ddip::tensors {

using comm::Capabilities;

class C10dBackend;

class Communicator {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Reduction = comm::Reduction;
  using Tensors = std::vector<at::Tensor>;

  // `name`: shm, gloo, nccl, …; `reason`: why it was chosen, for people.
  Communicator(c10::intrusive_ptr<c10d::Backend> backend, std::string name, std::string reason);

  int rank() const { return backend_->getRank(); }
  int world() const { return backend_->getSize(); }
  const std::string& name() const { return name_; }
  const std::string& reason() const { return reason_; }
  Capabilities capabilities() const;

  // All ranks call it, with the same size.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options = {});

  Work start_all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::sum);
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::sum);
  void broadcast(const at::Tensor& tensor, int root = 0);
  void reduce(const at::Tensor& tensor, int root, Reduction reduction = Reduction::sum);
  // The result has one more dimension in front, of world().
  at::Tensor all_gather(const at::Tensor& tensor);
  Tensors gather(const at::Tensor& tensor, int root);                  // empty but on root
  void scatter(const at::Tensor& out, const Tensors& list, int root);  // `list` on root only
  void reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduction reduction = Reduction::sum);
  void all_to_all(const at::Tensor& out, const at::Tensor& in);
  void barrier();
  // In order for each pair and tag.
  Work start_send(const at::Tensor& tensor, int to, int tag = 0);
  Work start_receive(const at::Tensor& tensor, int from, int tag = 0);

  // Told of every message when it is handed over, before it leaves or arrives: for who wants to see what really went.
  using Watcher = std::function<void(bool sends, int peer, int tag, const at::Tensor& tensor)>;
  void watch_messages(Watcher watcher) { watcher_ = std::move(watcher); }

  // Every wait ends, on all ranks; nothing can be done with it afterwards.
  void abort();
  // What this rank waits for now, in words; empty where the backend does not know.
  std::string describe() const;
  // Seconds this rank has waited for each of the others so far; empty where the backend does not know.
  std::vector<double> waited() const;

  // The first of them for a worker's control thread, also after this is gone: what a call of ours waits in.
  Describer describer() const;

  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

  // Runs what engines do together with the other ranks beside computing. One for all of them: the ranks must make their
  // calls in one order, also when two models are in one backward.
  WorkerThread& thread();

 private:
  struct Window;  // through which others look at us

  void wait(const char* operation, const Work& work);
  void require_peer(int peer) const;
  // Where torch would read and write past it.
  void require_whole(const at::Tensor& tensor) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  C10dBackend* ours_;  // null: it is torch's
  std::string name_;
  std::string reason_;
  Window* const window_;  // stays when we go
  Watcher watcher_;
  std::mutex mutex_;  // guards the next
  std::unique_ptr<WorkerThread> thread_;
};

}  // namespace ddip::tensors
