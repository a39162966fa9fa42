#include "ddip/net/local_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "ddip/base/error.h"

namespace ddip::net {
namespace {

constexpr uid_t kOverflowUid = 65534;

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string text = path.string();
  if (text.size() >= sizeof address.sun_path) {
    throw ConfigError(
        fmt::format("socket path {} is too long ({} bytes, at most {}); set DDIP_RUNTIME_DIR to a shorter folder", text,
                    text.size(), sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  return address;
}

Fd unix_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno("socket");
  return socket;
}

}  // namespace

void require_private_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw ConfigError(fmt::format("cannot make the folder {}: {}", folder.string(), std::strerror(errno)));
  }
  check_private_folder(folder);
}

void check_private_folder(const std::filesystem::path& folder) {
  struct stat status{};
  if (::lstat(folder.c_str(), &status) != 0) {
    throw ConfigError(fmt::format("cannot look at {}: {}", folder.string(), std::strerror(errno)));
  }
  if (!S_ISDIR(status.st_mode)) throw ConfigError(fmt::format("{} is not a directory", folder.string()));
  if (status.st_uid != ::geteuid())
    throw ConfigError(fmt::format("{} belongs to uid {}, not to you", folder.string(), status.st_uid));
  if (status.st_mode & 077) {
    throw ConfigError(
        fmt::format("{} is open to others (mode {:03o}); expected 700", folder.string(), status.st_mode & 0777));
  }
}

std::filesystem::path runtime_folder(const std::string& override_folder) {
  return override_folder.empty() ? std::filesystem::path(fmt::format("/tmp/ddip-{}", ::geteuid()))
                                 : std::filesystem::path(override_folder);
}

Fd listen_at(const std::filesystem::path& path) {
  sockaddr_un address = address_of(path);
  Fd socket = unix_socket();
  ::unlink(path.c_str());
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw_errno("bind " + path.string());
  if (::chmod(path.c_str(), 0600) != 0) throw_errno("chmod " + path.string());
  if (::listen(socket.get(), 128) != 0) throw_errno("listen at " + path.string());
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) throw_errno("set non-blocking");
  return socket;
}

Fd accept_from(int listener) {
  Fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return socket;
}

Fd connect_to(const std::filesystem::path& path) {
  sockaddr_un address = address_of(path);
  Fd socket = unix_socket();
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw PeerLost(fmt::format("nobody answers at {}: {}", path.string(), std::strerror(errno)));
  }
  return socket;
}

std::pair<Fd, Fd> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
  return {Fd(ends[0]), Fd(ends[1])};
}

Peer peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) throw_errno("SO_PEERCRED");
  return {credentials.pid, credentials.uid};
}

bool may_connect(const Peer& peer) { return peer.uid == ::geteuid() && peer.uid != kOverflowUid; }

std::pair<Fd, int> listen_on_loopback(int port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno("socket");
  int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw ConfigError(
        fmt::format("port {} on 127.0.0.1 cannot be used: {}; leave --master-port out and a free one is chosen", port,
                    std::strerror(errno)));
  }
  if (::listen(socket.get(), 128) != 0) throw_errno("listen on loopback");
  socklen_t size = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) throw_errno("getsockname");
  return {std::move(socket), ntohs(address.sin_port)};
}

}  // namespace ddip::net
