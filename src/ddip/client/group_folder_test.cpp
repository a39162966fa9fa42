#include "ddip/client/group_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cstdlib>
#include <fstream>

#include "ddip/base/error.h"
#include "ddip/base/fd.h"

namespace ddip::client {
namespace fs = std::filesystem;
namespace {

class GroupFolderTest : public testing::Test {
 protected:
  GroupFolderTest() {
    std::string pattern = testing::TempDir() + "ddip-folder-XXXXXX";
    runtime = ::mkdtemp(pattern.data());
  }
  ~GroupFolderTest() override { fs::remove_all(runtime); }

  void make_dead(const std::string& name) {
    fs::create_directory(runtime / name);
    fs::permissions(runtime / name, fs::perms::owner_all);
    std::ofstream(runtime / name / "lock") << "";
  }
  // As a coordinator holds it; the group runs as long as the descriptor lives.
  Fd make_running(const std::string& name) {
    make_dead(name);
    Fd lock(::open((runtime / name / "lock").c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
    return lock;
  }
  std::string refusal(const std::string& name) {
    try {
      require_group(runtime, name);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  fs::path runtime;
};

}  // namespace

TEST_F(GroupFolderTest, group_runs_exactly_while_its_lock_is_held) {
  EXPECT_FALSE(is_running(group_folder(runtime, "a"))) << "not even there";
  {
    Fd held = make_running("a");
    EXPECT_TRUE(is_running(group_folder(runtime, "a")));
    EXPECT_TRUE(is_running(group_folder(runtime, "a"))) << "asking takes nothing away";
  }
  EXPECT_FALSE(is_running(group_folder(runtime, "a")));
}

TEST_F(GroupFolderTest, asking_does_not_keep_a_coordinator_from_its_lock) {
  make_dead("a");
  EXPECT_FALSE(is_running(group_folder(runtime, "a")));
  Fd lock(::open((runtime / "a" / "lock").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
}

TEST_F(GroupFolderTest, groups_are_listed_by_name_and_other_folders_are_not) {
  EXPECT_TRUE(all_groups(runtime).empty());
  EXPECT_TRUE(all_groups(runtime / "nothing").empty());
  Fd held = make_running("b");
  make_dead("a");
  fs::create_directory(runtime / "no lock in it");
  std::ofstream(runtime / "file") << "";
  std::vector<std::string> names;
  for (const GroupFolder& group : all_groups(runtime)) names.push_back(group.name());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b"}));
}

TEST_F(GroupFolderTest, unknown_group_is_refused_with_those_that_run) {
  EXPECT_NE(refusal("main").find("no group is running"), std::string::npos);
  make_dead("main");
  EXPECT_NE(refusal("main").find("no group is running"), std::string::npos) << "dead is not running";
  Fd one = make_running("one"), two = make_running("two");
  EXPECT_EQ(refusal("main"), "no group named main; running: one, two");
  EXPECT_EQ(require_group(runtime, "two").path, runtime / "two");
}

TEST_F(GroupFolderTest, folder_that_others_may_enter_is_not_walked_into) {
  Fd one = make_running("one");
  fs::permissions(runtime / "one", fs::perms::owner_all | fs::perms::others_exec);
  EXPECT_NE(refusal("one").find("open to others"), std::string::npos);
  fs::permissions(runtime / "one", fs::perms::owner_all);
  EXPECT_EQ(refusal("one"), "");
  fs::permissions(runtime, fs::perms::owner_all | fs::perms::group_write);
  EXPECT_NE(refusal("one").find("open to others"), std::string::npos);
  fs::permissions(runtime, fs::perms::owner_all);
}

TEST_F(GroupFolderTest, files_have_their_documented_names) {
  GroupFolder folder = group_folder("/run", "main");
  EXPECT_EQ(folder.name(), "main");
  EXPECT_EQ(folder.socket(), "/run/main/socket");
  EXPECT_EQ(folder.key(), "/run/main/key");
  EXPECT_EQ(folder.lock(), "/run/main/lock");
  EXPECT_EQ(folder.marker(), "/run/main/marker");
  EXPECT_EQ(folder.log(), "/run/main/coordinator.log");
}

TEST_F(GroupFolderTest, state_follows_the_xdg_variables) {
  EXPECT_EQ(state_folder("", "/home/ada"), "/home/ada/.local/state/ddip");
  EXPECT_EQ(state_folder("/state", "/home/ada"), "/state/ddip");
}

TEST_F(GroupFolderTest, newest_journal_is_the_last_by_its_stamp) {
  EXPECT_TRUE(newest_journal(runtime, "main").empty());
  for (const char* stamp : {"000000000002.5", "000000000010.1", "000000000001.9"})
    fs::create_directories(runtime / "main" / stamp);
  EXPECT_EQ(newest_journal(runtime, "main"), runtime / "main" / "000000000010.1");
}

}  // namespace ddip::client
