#include "ddip/coordinator/request_table.h"

namespace ddip::coordinator {

Request& RequestTable::open(Request request) {
  request.cell = ++last_cell_;
  request.open_ranks = std::set<int>(request.ranks.begin(), request.ranks.end());
  return requests_.emplace(request.cell, std::move(request)).first->second;
}

bool RequestTable::settle(uint64_t cell, int rank) {
  Request* request = find(cell);
  return request && request->open_ranks.erase(rank) == 1;
}

bool RequestTable::finished(uint64_t cell) const {
  auto found = requests_.find(cell);
  return found != requests_.end() && found->second.open_ranks.empty();
}

void RequestTable::forget(uint64_t cell) { requests_.erase(cell); }

Request* RequestTable::find(uint64_t cell) {
  auto found = requests_.find(cell);
  return found == requests_.end() ? nullptr : &found->second;
}

const Request* RequestTable::find(uint64_t cell) const {
  auto found = requests_.find(cell);
  return found == requests_.end() ? nullptr : &found->second;
}

std::vector<uint64_t> RequestTable::unfinished() const {
  std::vector<uint64_t> cells;
  for (const auto& [cell, request] : requests_) cells.push_back(cell);
  return cells;
}

std::vector<uint64_t> RequestTable::unfinished_on(int rank) const {
  std::vector<uint64_t> cells;
  for (const auto& [cell, request] : requests_) {
    if (request.open_ranks.contains(rank)) cells.push_back(cell);
  }
  return cells;
}

}  // namespace ddip::coordinator
