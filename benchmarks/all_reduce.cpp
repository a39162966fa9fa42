// All-reduce of floats in C++, four ways in one process per rank, in turn, so that all meet the same machine:
//
//   shared   ddip's, on memory that all ranks see (comm.empty)
//   plain    ddip's, on ordinary memory
//   floor    what the memory allows: each rank reduces its slice in place and writes it to all, with the meetings
//   (spin,
//            then sleep) that ddip's has; wrong where a rank dies half-way, so no way to do it
//   mpi      MPI_Allreduce
//
//   mpirun -n 2 all_reduce_benchmark FOLDER REPEATS     prints JSON of rank 0's seconds; FOLDER is empty, and the ranks
//                                                       find each other there
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "ddip/base/error.h"
#include "ddip/comm/reduce.h"
#include "ddip/comm/shm/collectives.h"
#include "ddip/comm/shm/share.h"

namespace {

using namespace ddip::comm;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 60s;
constexpr int kWarm = 3;

class Folder : public Store {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}
  void set(const std::string& key, const std::string& value) override {
    std::filesystem::path there = file(key), here = there.string() + ".new";
    std::ofstream(here) << value;
    std::filesystem::rename(here, there);
  }
  std::string get(const std::string& key) override {
    auto deadline = Clock::now() + kPatience;
    while (!std::filesystem::exists(file(key))) {
      if (Clock::now() > deadline) throw ddip::TimedOut("nobody wrote " + key);
      std::this_thread::yield();
    }
    std::ifstream in(file(key));
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path file(std::string key) const {
    for (char& letter : key) letter = letter == '/' ? '_' : letter;
    return path_ / key;
  }
  std::filesystem::path path_;
};

shm::Slab share_slab(Store& store, int rank, int world, size_t bytes) {
  if (rank != 0) {
    shm::Slab::Offer offer;
    if (std::sscanf(store.get("slab").c_str(), "%d %d", &offer.pid, &offer.file) != 2) std::abort();
    return shm::Slab::open(offer, world, bytes);
  }
  shm::Slab slab = shm::Slab::create(world, bytes);
  store.set("slab", std::to_string(slab.offer().pid) + " " + std::to_string(slab.offer().file));
  return slab;
}

void floor_all_reduce(const shm::Slab& slab, shm::Meeting& meeting, int rank, int world, size_t count) {
  meeting.begin({.count = count, .kind = shm::Kind::all_reduce});
  size_t begin = count * static_cast<size_t>(rank) / static_cast<size_t>(world);
  size_t end = count * static_cast<size_t>(rank + 1) / static_cast<size_t>(world);
  const void* inputs[shm::kMaxRanks];
  for (int peer = 0; peer < world; ++peer) inputs[peer] = slab.part(peer) + begin * sizeof(float);
  std::byte* mine = slab.part(rank) + begin * sizeof(float);
  reduce(Element::f32, Reduction::sum, 1.0, {inputs, static_cast<size_t>(world)}, mine, end - begin);
  for (int peer = 0; peer < world; ++peer) {
    if (peer != rank) std::memcpy(slab.part(peer) + begin * sizeof(float), mine, (end - begin) * sizeof(float));
  }
  meeting.again();
}

struct Side {
  const char* name;
  float* data;
  std::function<void()> call;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: all_reduce_benchmark FOLDER REPEATS\n"), 2;
  int repeats = std::atoi(argv[2]), rank = 0, world = 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  {
    Folder store(argv[1]);
    shm::Segment segment = shm::share(store, "segment", rank, world, size_t{1} << 26);
    shm::Segment at_floor = shm::share(store, "floor", rank, world, size_t{1} << 20);
    shm::Collectives ranks(segment, rank, kPatience);
    shm::Meeting meeting(at_floor, rank, kPatience);
    constexpr size_t kMost = size_t{8} << 20;
    shm::Slab slab = share_slab(store, rank, world, kMost * sizeof(float));
    auto shared = ranks.allocate(kMost * sizeof(float));
    std::vector<float> plain(kMost), bare(kMost);
    if (rank == 0) std::printf("{");
    for (size_t count : {size_t{64}, size_t{16} << 10, size_t{256} << 10, size_t{2} << 20, kMost}) {
      Typed typed{Element::f32, Reduction::sum};
      auto* in_slab = reinterpret_cast<float*>(slab.part(rank));
      auto* in_shared = reinterpret_cast<float*>(shared.get());
      const Side sides[] = {
          {"shared", in_shared, [&] { ranks.all_reduce(in_shared, count, typed); }},
          {"plain", plain.data(), [&] { ranks.all_reduce(plain.data(), count, typed); }},
          {"floor", in_slab, [&] { floor_all_reduce(slab, meeting, rank, world, count); }},
          {"mpi", bare.data(),
           [&] {
             MPI_Allreduce(MPI_IN_PLACE, bare.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
           }},
      };
      std::map<std::string, std::vector<double>> seconds;
      for (int turn = 0; turn < repeats + kWarm; ++turn) {
        for (const Side& side : sides) {
          std::fill_n(side.data, count, static_cast<float>(rank + 1));  // as a backward does
          ranks.barrier();
          auto begun = Clock::now();
          side.call();
          std::chrono::duration<double> took = Clock::now() - begun;
          if (turn >= kWarm) seconds[side.name].push_back(took.count());
          float sum = static_cast<float>(world * (world + 1)) / 2;
          if (side.data[0] != sum || side.data[count - 1] != sum) {
            std::fprintf(stderr, "%s: %f is not %f\n", side.name, static_cast<double>(side.data[0]),
                         static_cast<double>(sum));
            MPI_Abort(MPI_COMM_WORLD, 1);
          }
        }
      }
      if (rank != 0) continue;
      std::printf("%s\"%zu\": {", count == 64 ? "" : ", ", count * sizeof(float));
      for (const auto& [name, values] : seconds) {
        std::printf("%s\"%s\": [", name == seconds.begin()->first ? "" : ", ", name.c_str());
        for (size_t index = 0; index < values.size(); ++index) std::printf("%s%.7f", index ? ", " : "", values[index]);
        std::printf("]");
      }
      std::printf("}");
    }
    if (rank == 0) std::printf("}\n");
    ranks.barrier();
  }
  MPI_Finalize();
  return 0;
}
