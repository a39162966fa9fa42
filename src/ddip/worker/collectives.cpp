#include "ddip/worker/collectives.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

namespace ddip::worker {
namespace {

uint64_t inode_of(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

// 0 for anything that is not an IP address.
int port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

}  // namespace

void Collectives::enter(const std::string& operation, const std::string& group) {
  std::lock_guard lock(mutex_);
  current_ = InCollective{operation, group, ++entered_[group], std::chrono::steady_clock::now()};
}

void Collectives::leave() {
  std::lock_guard lock(mutex_);
  current_.reset();
}

std::optional<InCollective> Collectives::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

void Collectives::add_group(const std::string& group, const std::vector<int>& sockets) {
  std::lock_guard lock(mutex_);
  auto& known = groups_[group];
  for (int fd : sockets) known.push_back({fd, inode_of(fd)});
}

void Collectives::remove_group(const std::string& group) {
  std::lock_guard lock(mutex_);
  groups_.erase(group);
  describers_.erase(group);
  entered_.erase(group);
  std::erase(dead_, group);
}

void Collectives::add_describer(const std::string& group, Describer describer) {
  std::lock_guard lock(mutex_);
  describers_[group] = describer;
}

std::vector<Collectives::Waiting> Collectives::waiting() const {
  std::lock_guard lock(mutex_);
  std::vector<Waiting> found;
  for (const auto& [group, describer] : describers_) {
    std::string text(4096, '\0');
    text.resize(describer.describe(describer.object, text.data(), text.size()));
    if (!text.empty()) found.push_back({group, std::move(text)});
  }
  return found;
}

int Collectives::abort(const std::string& group) {
  std::lock_guard lock(mutex_);
  int count = 0;
  for (const auto& [name, sockets] : groups_) {
    if (!group.empty() && name != group) continue;
    for (const Socket& socket : sockets) {
      if (socket.inode != 0 && inode_of(socket.fd) == socket.inode && ::shutdown(socket.fd, SHUT_RDWR) == 0) ++count;
    }
    if (std::find(dead_.begin(), dead_.end(), name) == dead_.end()) dead_.push_back(name);
  }
  return count;
}

std::vector<std::string> Collectives::dead_groups() const {
  std::lock_guard lock(mutex_);
  return dead_;
}

namespace {

// Connected TCP sockets of this process that `wanted(local port, remote port)`, in order.
std::vector<int> sockets_where(const std::function<bool(int, int)>& wanted) {
  std::vector<int> found;
  DIR* folder = ::opendir("/proc/self/fd");
  if (!folder) return found;
  while (dirent* entry = ::readdir(folder)) {
    int fd = std::atoi(entry->d_name);
    if (inode_of(fd) == 0) continue;
    sockaddr_storage local{}, remote{};
    socklen_t size = sizeof local;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) continue;
    size = sizeof remote;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &size) != 0) continue;  // a listener
    if (port_of(local) != 0 && wanted(port_of(local), port_of(remote))) found.push_back(fd);
  }
  ::closedir(folder);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<int> connected_sockets(int store_port) {
  return sockets_where([=](int local, int remote) { return local != store_port && remote != store_port; });
}

std::vector<int> connections_to(int port) {
  return sockets_where([=](int, int remote) { return remote == port; });
}

}  // namespace ddip::worker
