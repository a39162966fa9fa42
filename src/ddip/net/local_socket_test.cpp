#include "ddip/net/local_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "ddip/base/error.h"

namespace ddip::net {
namespace fs = std::filesystem;
namespace {

class LocalSocketTest : public testing::Test {
 protected:
  LocalSocketTest() {
    std::string pattern = testing::TempDir() + "ddip-socket-XXXXXX";
    root = ::mkdtemp(pattern.data());
  }
  ~LocalSocketTest() override { fs::remove_all(root); }

  std::string complaint(const fs::path& folder) {
    try {
      require_private_folder(folder);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  fs::path root;
};

mode_t mode_of(const fs::path& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

}  // namespace

TEST_F(LocalSocketTest, private_folder_is_made_closed_whatever_the_umask) {
  mode_t before = ::umask(0);
  require_private_folder(root / "new");
  ::umask(before);
  EXPECT_EQ(mode_of(root / "new"), 0700u);
  EXPECT_EQ(complaint(root / "new"), "") << "and may be there already";
}

TEST_F(LocalSocketTest, folder_that_others_may_enter_is_refused) {
  for (mode_t mode : {0755u, 0710u, 0701u, 0720u, 0777u}) {
    fs::path folder = root / std::to_string(mode);
    ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
    ASSERT_EQ(::chmod(folder.c_str(), mode), 0);
    EXPECT_NE(complaint(folder).find("open to others"), std::string::npos) << mode;
  }
}

TEST_F(LocalSocketTest, link_and_file_in_its_place_are_refused) {
  fs::create_directory(root / "real");
  fs::permissions(root / "real", fs::perms::owner_all);
  fs::create_directory_symlink(root / "real", root / "link");
  EXPECT_NE(complaint(root / "link").find("not a directory"), std::string::npos);
  std::ofstream(root / "file") << "x";
  EXPECT_NE(complaint(root / "file").find("not a directory"), std::string::npos);
  EXPECT_NE(complaint(root / "no" / "parent").find("cannot make"), std::string::npos);
}

TEST_F(LocalSocketTest, somebody_elses_folder_is_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(root / "theirs");
  fs::permissions(root / "theirs", fs::perms::owner_all);
  ASSERT_EQ(::chown((root / "theirs").c_str(), 12345, 12345), 0);
  EXPECT_NE(complaint(root / "theirs").find("belongs to uid 12345"), std::string::npos);
}

TEST_F(LocalSocketTest, runtime_folder_is_per_user_unless_told_otherwise) {
  EXPECT_EQ(runtime_folder(""), "/tmp/ddip-" + std::to_string(::geteuid()));
  EXPECT_EQ(runtime_folder("/somewhere"), "/somewhere");
}

TEST_F(LocalSocketTest, listener_is_closed_to_others_and_takes_its_peer_by_name) {
  fs::path path = root / "socket";
  Fd listener = listen_at(path);
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_FALSE(accept_from(listener.get())) << "nobody waits, and it does not block";
  Fd client = connect_to(path);
  Fd server = accept_from(listener.get());
  ASSERT_TRUE(server);
  for (int fd : {listener.get(), client.get(), server.get()}) EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC);
  Peer peer = peer_of(server.get());
  EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_EQ(peer.uid, ::geteuid());
  EXPECT_TRUE(may_connect(peer));
}

TEST_F(LocalSocketTest, socket_file_of_a_dead_predecessor_is_replaced) {
  fs::path path = root / "socket";
  {
    Fd dead = listen_at(path);
  }
  EXPECT_TRUE(fs::exists(path));
  EXPECT_THROW(connect_to(path), PeerLost);
  Fd listener = listen_at(path);
  EXPECT_TRUE(connect_to(path));
}

TEST_F(LocalSocketTest, nobody_there_is_a_lost_peer_with_the_path) {
  try {
    connect_to(root / "nothing");
    FAIL();
  } catch (const PeerLost& error) {
    EXPECT_NE(std::string(error.what()).find((root / "nothing").string()), std::string::npos);
  }
}

TEST_F(LocalSocketTest, path_too_long_for_a_socket_says_what_to_do) {
  fs::path path = root / std::string(200, 'x');
  for (auto attempt : {+[](const fs::path& at) { listen_at(at); }, +[](const fs::path& at) { connect_to(at); }}) {
    try {
      attempt(path);
      FAIL();
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("DDIP_RUNTIME_DIR"), std::string::npos);
    }
  }
}

TEST_F(LocalSocketTest, only_the_same_user_may_come_in) {
  EXPECT_TRUE(may_connect({1, ::geteuid()}));
  EXPECT_FALSE(may_connect({1, ::geteuid() + 1}));
  EXPECT_FALSE(may_connect({1, 65534}));
}

TEST_F(LocalSocketTest, loopback_listener_is_on_loopback_only_and_a_taken_port_is_named) {
  auto [listener, port] = listen_on_loopback(0);
  EXPECT_GT(port, 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
  EXPECT_TRUE(::fcntl(listener.get(), F_GETFD) & FD_CLOEXEC);
  try {
    listen_on_loopback(port);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(port)), std::string::npos);
  }
}

}  // namespace ddip::net
