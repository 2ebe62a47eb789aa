//! App health as a condition of leadership. The app grace is 3 s, three times the ttl.

use super::*;

const GRACE: Duration = Duration::from_secs(3);

/// What the nodes say whenever they are asked.
#[derive(Clone, Copy, PartialEq)]
enum World {
    /// Nobody else is there.
    Empty,
    /// Another holds the lock.
    Held,
}

fn bench(wish: &Wish) -> Bench {
    Bench::with_app(3, false, wish, Some(GRACE))
}

fn tell(bench: &mut Bench, healthy: bool) {
    bench.core.handle_request(bench.now, &Request::Health(healthy));
    bench.collect();
}

/// Lets time pass while all nodes answer every ask within 2 ms.
fn pass(bench: &mut Bench, world: World, time: Duration) {
    let end = bench.now + time;
    let mut answered = bench.asks.len().saturating_sub(3);
    while bench.now < end {
        while answered < bench.asks.len() {
            let (node, ask) = bench.asks[answered].clone();
            answered += 1;
            let is_held = world == World::Held;
            let verdict = match &ask.what {
                What::Look { .. } if is_held => Verdict::Seen,
                What::Look { .. } => Verdict::Free,
                What::Acquire(_) if is_held => Verdict::Held,
                What::Acquire(_) => Verdict::Granted,
                What::Extend(_) => Verdict::Extended,
                _ => {
                    let released = Outcome::Released { deleted: true, time_us: 1 };
                    bench.reply_to(node, &ask, released, bench.now);
                    continue;
                }
            };
            let mut answer = bench.answer(node, verdict);
            match &ask.what {
                What::Acquire(claim) | What::Extend(claim) => answer.token = claim.token,
                _ => {}
            }
            if is_held && !matches!(ask.what, What::Extend(_)) {
                held_by_rival(400)(&mut answer);
            }
            bench.reply_to(node, &ask, Outcome::Answer(answer), bench.now - ms(2));
        }
        bench.sleep(ms(2));
    }
}

/// Lets time pass until it leads, and gives how long that took.
fn until_leading(bench: &mut Bench, most: Duration) -> Option<Duration> {
    let began = bench.now;
    while bench.now.since(began) < most {
        if bench.core.leadership().is_leading(bench.now) {
            return Some(bench.now.since(began));
        }
        pass(bench, World::Empty, ms(2));
    }
    None
}

#[test]
fn an_app_that_has_said_nothing_counts_as_sick_and_one_that_recovers_is_a_candidate_at_once() {
    let mut bench = bench(&Wish::with_ttl(ms(1000)));
    assert_eq!(bench.core.leadership().app_healthy, Some(false));
    pass(&mut bench, World::Empty, ms(1500));
    assert!(bench.outcomes().is_empty(), "no attempt while the app is sick");
    assert!(bench.core.leadership().reason(bench.now).contains("the app is not healthy"));
    tell(&mut bench, true);
    assert!(until_leading(&mut bench, ms(20)).is_some(), "it looks at once");
}

#[test]
fn who_is_sick_never_leads_while_another_does_and_asks_for_nothing() {
    let mut bench = bench(&Wish::with_ttl(ms(1000)));
    pass(&mut bench, World::Held, GRACE * 5);
    assert!(bench.outcomes().is_empty());
    // A short leadership of another between two looks is known by its release.
    pass(&mut bench, World::Empty, GRACE - ms(700));
    bench.core.handle_wake(bench.now);
    bench.collect();
    pass(&mut bench, World::Empty, GRACE - ms(100));
    assert!(bench.outcomes().is_empty());
}

#[test]
fn where_nobody_leads_for_the_app_grace_a_sick_one_does_and_makes_way_after_each_app_grace() {
    let mut bench = bench(&Wish::with_ttl(ms(1000)));
    let took = until_leading(&mut bench, GRACE * 2).expect("it leads degraded");
    assert!(took >= GRACE && took <= GRACE + ms(20), "{took:?}");
    assert!(bench.core.leadership().reason(bench.now).contains("though the app is not healthy"));
    let began = bench.now;
    // Said again, it is no news.
    tell(&mut bench, false);
    pass(&mut bench, World::Empty, GRACE - ms(10));
    assert_eq!(bench.ended(), None);
    pass(&mut bench, World::Empty, ms(20));
    assert_eq!(bench.ended(), Some(StepDown::AppUnhealthy));
    assert!(!bench.released().is_empty());
    let ended = bench.now;
    // Its own release is told on the channel, and is no other's.
    bench.core.handle_wake(bench.now);
    bench.collect();
    let away = until_leading(&mut bench, GRACE).expect("nobody else was there");
    assert!(away >= ms(700) && away <= ms(800), "{away:?} after {:?}", ended.since(began));
}

#[test]
fn one_that_makes_way_and_finds_another_stays_away() {
    let mut bench = bench(&Wish::with_ttl(ms(1000)));
    until_leading(&mut bench, GRACE * 2).expect("it leads degraded");
    pass(&mut bench, World::Empty, GRACE + ms(10));
    assert_eq!(bench.ended(), Some(StepDown::AppUnhealthy));
    pass(&mut bench, World::Held, GRACE * 3);
    assert!(!bench.core.leadership().is_leading(bench.now));
    assert_eq!(bench.outcomes().len(), 1, "one attempt, which was won");
}

#[test]
fn a_degraded_leader_that_recovers_keeps_its_leadership() {
    let mut bench = bench(&Wish::with_ttl(ms(1000)));
    until_leading(&mut bench, GRACE * 2).expect("it leads degraded");
    tell(&mut bench, true);
    pass(&mut bench, World::Empty, GRACE * 3);
    assert_eq!(bench.ended(), None);
}

#[test]
fn a_leader_whose_app_falls_sick_hands_over_and_one_that_relapses_stands_back_for_longer() {
    let wish = Wish { handover_delay: ms(200), ..Wish::with_ttl(ms(1000)) };
    let mut bench = bench(&wish);
    // 3/4, 6/4, 12/4 of the ttl, and then the app grace.
    for least in [750, 1500, 3000, 3000] {
        tell(&mut bench, true);
        until_leading(&mut bench, GRACE * 2).expect("it leads");
        let token = bench.claim(0).token;
        tell(&mut bench, false);
        assert!(!bench.core.leadership().is_leading(bench.now), "readiness goes first");
        pass(&mut bench, World::Empty, ms(190));
        assert!(bench.core.leadership().belief(bench.now).is_some(), "the lock is kept for the hand-over delay");
        pass(&mut bench, World::Empty, ms(20));
        assert!(bench.core.leadership().belief(bench.now).is_none());
        assert_eq!(bench.ended(), Some(StepDown::AppUnhealthy));
        tell(&mut bench, true);
        let away = until_leading(&mut bench, GRACE * 2).expect("it leads again");
        assert!(away + ms(30) >= ms(least) && away <= ms(least + 30), "{away:?} instead of {least} ms");
        assert!(bench.claim(0).token > token);
    }
    // A leadership that lasts is a recovery.
    pass(&mut bench, World::Empty, GRACE);
    tell(&mut bench, false);
    pass(&mut bench, World::Empty, ms(210));
    tell(&mut bench, true);
    let away = until_leading(&mut bench, GRACE * 2).expect("it leads again");
    assert!(away <= ms(780), "{away:?}");
}
