// Unix sockets on one host: where they live, who may knock.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <utility>

#include "ddip/base/fd.h"

namespace ddip::net {

struct Peer {
  pid_t pid;
  uid_t uid;
};

// Makes (0700) or checks a private folder: a real directory of ours that nobody else may enter. Throws ConfigError
// with the reason otherwise.
void require_private_folder(const std::filesystem::path& folder);

// The same check without making it; for those who only look.
void check_private_folder(const std::filesystem::path& folder);

// The folder of all groups of this user: `override_folder` if not empty, else /tmp/ddip-UID. Not under
// /run/user/UID, because that vanishes at logout while the group lives.
std::filesystem::path runtime_folder(const std::string& override_folder);

Fd listen_at(const std::filesystem::path& path);
// Non-blocking accept; an empty Fd when nobody waits.
Fd accept_from(int listener);
// Throws PeerLost if nobody listens there.
Fd connect_to(const std::filesystem::path& path);
std::pair<Fd, Fd> socket_pair();

Peer peer_of(int socket);
// Same user, and not the overflow user that other namespaces' users appear as.
bool may_connect(const Peer& peer);

// A TCP listener on 127.0.0.1. Port 0: the kernel chooses. Throws ConfigError naming the port if it is taken.
std::pair<Fd, int> listen_on_loopback(int port);

}  // namespace ddip::net
