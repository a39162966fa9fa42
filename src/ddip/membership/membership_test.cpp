#include "ddip/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddip/membership/describe.h"

namespace ddip::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// One group and the hands that feed it; the clock moves only by `now`.
class MembershipTest : public testing::Test {
 protected:
  std::vector<Action> feed(const Event& event) {
    Decision decision = decide(state, event, now, options);
    state = std::move(decision.state);
    reason = std::move(decision.reason);
    return std::move(decision.actions);
  }

  void start_all() {
    feed(Begin{});
    for (int rank = 0; rank < 3; ++rank) feed(Joined{rank, 1, 100 + rank});
    ASSERT_EQ(state.phase, Phase::running);
  }

  State state = empty_group(3);
  Options options{.start_timeout = seconds(30)};
  Time now{};
  std::string reason;
};

TEST_F(MembershipTest, begin_spawns_every_rank_in_epoch_one) {
  EXPECT_THAT(feed(Begin{}), ElementsAre(Spawn{0, 1, 1}, Spawn{1, 1, 1}, Spawn{2, 1, 1}));
  EXPECT_THAT(feed(Begin{}), ElementsAre(Refuse{"a group starts once; this one is starting"}));
}

TEST_F(MembershipTest, ready_is_announced_when_the_last_rank_joined) {
  feed(Begin{});
  EXPECT_THAT(feed(Joined{2, 1, 102}), IsEmpty());
  EXPECT_THAT(feed(Joined{0, 1, 100}), IsEmpty());
  EXPECT_THAT(feed(Joined{1, 1, 101}), ElementsAre(AnnounceReady{1, {0, 1, 2}}));
  EXPECT_EQ(state.members[2].pid, 102);
  EXPECT_EQ(next_deadline(state, options), std::nullopt);
}

TEST_F(MembershipTest, late_start_names_exactly_the_ranks_that_did_not_join_and_kills_all) {
  feed(Begin{});
  feed(Joined{1, 1, 101});
  EXPECT_EQ(next_deadline(state, options), now + seconds(30));
  now += seconds(30) - milliseconds(1);
  EXPECT_THAT(feed(Tick{}), IsEmpty());
  now += milliseconds(1);
  const std::string why = "ranks 0, 2 did not join within 30 s; see what they printed, or raise the start timeout";
  EXPECT_THAT(feed(Tick{}), ElementsAre(AnnounceStartFailed{{0, 2}, why}, Kill{0, 1}, Kill{1, 1}, Kill{2, 1}));
  EXPECT_EQ(reason, why);
  EXPECT_THAT(feed(Exited{0, 1, "killed"}), IsEmpty());
  EXPECT_THAT(feed(Exited{1, 1, "killed"}), IsEmpty());
  EXPECT_THAT(feed(Exited{2, 1, "killed"}), ElementsAre(AnnounceStopped{}));
}

TEST_F(MembershipTest, exit_during_start_fails_the_start_at_once) {
  feed(Begin{});
  feed(Joined{1, 1, 101});
  const std::string why = "rank 1 exited during start: signal 9";
  EXPECT_THAT(feed(Exited{1, 1, "signal 9"}), ElementsAre(AnnounceStartFailed{{1}, why}, Kill{0, 1}, Kill{2, 1}));
}

TEST_F(MembershipTest, lost_rank_is_announced_once_and_moves_the_epoch) {
  start_all();
  EXPECT_THAT(feed(Exited{2, 1, "signal 11"}), ElementsAre(AnnounceLost{2, 1, "signal 11"}));
  EXPECT_THAT(feed(Exited{2, 1, "signal 11"}), IsEmpty());
  EXPECT_EQ(state.epoch, 2u);
  EXPECT_TRUE(accepts_epoch(state, 2));
  EXPECT_FALSE(accepts_epoch(state, 1));
}

TEST_F(MembershipTest, lost_rank_is_spawned_at_once_when_replaced) {
  start_all();
  feed(Exited{2, 1, "signal 11"});
  EXPECT_THAT(feed(Replace{{2}}), ElementsAre(Spawn{2, 2, 2}));
  EXPECT_THAT(feed(Joined{2, 2, 202}), ElementsAre(AnnounceReady{3, {2}}));
}

TEST_F(MembershipTest, living_rank_is_spawned_only_after_its_old_process_exited) {
  start_all();
  EXPECT_THAT(feed(Replace{{1}}), ElementsAre(AnnounceLost{1, 1, "replaced on request"}, Kill{1, 1}));
  EXPECT_EQ(state.epoch, 2u);
  EXPECT_THAT(feed(Joined{1, 1, 101}), IsEmpty());
  EXPECT_THAT(feed(Exited{1, 1, "signal 9"}), ElementsAre(Spawn{1, 2, 2}));
}

TEST_F(MembershipTest, several_ranks_replaced_together_leave_in_one_epoch) {
  start_all();
  EXPECT_EQ(feed(Replace{{0, 1, 2}}).size(), 6u);
  EXPECT_EQ(state.epoch, 2u);
}

TEST_F(MembershipTest, replacing_twice_changes_nothing_while_the_first_is_under_way) {
  start_all();
  feed(Replace{{1}});
  EXPECT_THAT(feed(Replace{{1}}), IsEmpty());
  feed(Exited{1, 1, "signal 9"});
  EXPECT_THAT(feed(Replace{{1, 1}}), IsEmpty());
  EXPECT_EQ(state.members[1].incarnation, 2u);
}

TEST_F(MembershipTest, late_replacement_is_given_up_alone) {
  start_all();
  feed(Exited{2, 1, "signal 11"});
  feed(Replace{{2}});
  now += seconds(30);
  const std::vector<Action> actions = feed(Tick{});
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<AnnounceStartFailed>(actions[0]).ranks, std::vector{2});
  EXPECT_EQ(actions[1], Action(Kill{2, 2}));
  EXPECT_EQ(state.members[2].status, Status::lost);
  EXPECT_EQ(state.phase, Phase::running);
  EXPECT_EQ(next_deadline(state, options), std::nullopt);
  EXPECT_THAT(feed(Joined{2, 2, 202}), IsEmpty());
}

TEST_F(MembershipTest, replacement_that_exits_during_start_is_given_up_alone) {
  start_all();
  feed(Replace{{0}});
  feed(Exited{0, 1, "signal 9"});
  EXPECT_THAT(feed(Exited{0, 2, "status 1"}),
              ElementsAre(AnnounceStartFailed{{0}, "rank 0 exited during start: status 1"}));
  EXPECT_EQ(state.epoch, 2u);
}

TEST_F(MembershipTest, process_that_survives_its_kill_is_given_up_and_still_never_doubled) {
  start_all();
  feed(Replace{{1}});
  now += seconds(30);
  ASSERT_THAT(feed(Tick{}), testing::SizeIs(1));
  EXPECT_EQ(state.members[1].why, "did not exit when killed within 30 s");
  EXPECT_THAT(feed(Replace{{1}}), IsEmpty());
  EXPECT_THAT(feed(Exited{1, 1, "signal 9"}), ElementsAre(Spawn{1, 2, 2}));
}

TEST_F(MembershipTest, reports_of_an_old_incarnation_change_nothing) {
  start_all();
  feed(Exited{1, 1, "signal 9"});
  feed(Replace{{1}});
  const State before = state;
  EXPECT_THAT(feed(Exited{1, 1, "signal 9"}), IsEmpty());
  EXPECT_THAT(feed(Joined{1, 1, 101}), IsEmpty());
  EXPECT_THAT(feed(Exited{7, 1, "no such rank"}), IsEmpty());
  EXPECT_EQ(state, before);
  EXPECT_FALSE(is_current(state, 1, 1));
  EXPECT_TRUE(is_current(state, 1, 2));
  EXPECT_FALSE(is_current(state, -1, 1));
}

TEST_F(MembershipTest, replace_is_refused_unless_running_and_for_ranks_that_do_not_exist) {
  EXPECT_THAT(feed(Replace{{0}}), ElementsAre(Refuse{"only a running group can replace ranks; it is idle"}));
  start_all();
  const State before = state;
  EXPECT_THAT(feed(Replace{{0, 3}}), ElementsAre(Refuse{"no rank 3; ranks are 0 to 2"}));
  EXPECT_THAT(feed(Replace{}), ElementsAre(Refuse{"no rank to replace was named"}));
  EXPECT_EQ(state, before);
}

TEST_F(MembershipTest, stop_kills_all_and_is_announced_once_after_the_last_exit) {
  start_all();
  feed(Exited{2, 1, "signal 11"});
  EXPECT_THAT(feed(Stop{}), ElementsAre(Kill{0, 1}, Kill{1, 1}));
  EXPECT_THAT(feed(Exited{1, 1, "signal 9"}), IsEmpty());
  EXPECT_THAT(feed(Stop{}), IsEmpty());
  EXPECT_THAT(feed(Exited{0, 1, "signal 9"}), ElementsAre(AnnounceStopped{}));
  EXPECT_THAT(feed(Stop{}), ElementsAre(Refuse{"the group has stopped already"}));
  EXPECT_EQ(state.phase, Phase::stopped);
}

TEST_F(MembershipTest, stop_answers_a_start_and_a_replacement_under_way) {
  feed(Begin{});
  feed(Joined{1, 1, 101});
  EXPECT_EQ(feed(Stop{}).front(),
            Action(AnnounceStartFailed{{0, 2}, "the group was stopped before ranks 0, 2 joined"}));

  state = empty_group(3);
  start_all();
  feed(Replace{{1}});
  EXPECT_THAT(feed(Stop{}), ElementsAre(AnnounceStartFailed{{1}, "the group was stopped before rank 1 joined"},
                                        Kill{0, 1}, Kill{2, 1}));
}

TEST_F(MembershipTest, stop_before_begin_ends_at_once) {
  EXPECT_THAT(feed(Stop{}), ElementsAre(AnnounceStopped{}));
  EXPECT_THAT(feed(Begin{}), ElementsAre(Refuse{"a group starts once; this one is stopped"}));
}

TEST_F(MembershipTest, description_says_who_is_in_and_how_others_ended) {
  start_all();
  feed(Exited{1, 1, "signal 9"});
  feed(Replace{{2}});
  EXPECT_EQ(describe(state),
            "running, epoch 3, 1 of 3 ready\n"
            "  rank 0  ready (incarnation 1, pid 100)\n"
            "  rank 1  lost: signal 9 (incarnation 1)\n"
            "  rank 2  replacing, killed but not yet gone (incarnation 1, pid 102)\n");
  EXPECT_THAT(describe(empty_group(1)), HasSubstr("idle, epoch 0, 0 of 1 ready\n  rank 0  absent\n"));
}

TEST(DescribeRanks, joins_neighbours) {
  EXPECT_EQ(describe_ranks({3}), "rank 3");
  EXPECT_EQ(describe_ranks({0, 1}), "ranks 0, 1");
  EXPECT_EQ(describe_ranks({0, 1, 2, 3, 7, 9, 10, 11}), "ranks 0-3, 7, 9-11");
}

}  // namespace
}  // namespace ddip::membership
