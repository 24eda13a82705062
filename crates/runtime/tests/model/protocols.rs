//! Schedulers and their clients.

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::thread;
use sluice_core::{Op, PolicyConfig, Request};
use sluice_runtime::{Client, Driving, Scheduler, Shutdown, SubmitError};

use crate::checker::{Checked, Completes, check, check_stopping, config, request};

const DRAIN: Shutdown = Shutdown::Drain { timeout: Duration::from_secs(3600) };
const POLICIES: [&str; 3] = ["noop", "to-agg", "mlf"];

/// Submits `count` overlapping and other requests.
fn submit_some(client: &Client, host: &Checked, thread: u64, count: u64) {
    for n in 0..count {
        let op = if n % 2 == 0 { Op::Write } else { Op::Read };
        let request = request(thread * 100 + n, n % 2, op, 5 * (thread % 2));
        host.submits(request);
        match client.submit(0, request) {
            Ok(()) => {}
            Err(SubmitError::Closed) => host.refused(request.cookie),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Threads submit more than there are places; a thread completes; everything ends.
pub fn callers(policy: &'static str, driving: Driving, completes: Completes) {
    let host = Checked::new(completes);
    let scheduler = Scheduler::start(config(policy, 2, driving)).unwrap();
    let client = Arc::new(scheduler.attach(host.clone()).unwrap());
    let submitters: Vec<_> = (0..2)
        .map(|number| {
            let (client, host) = (client.clone(), host.clone());
            thread::spawn(move || submit_some(&client, &host, number, 3))
        })
        .collect();
    let completer = completing(&host, completes, 6);
    submitters.into_iter().for_each(|thread| thread.join().unwrap());
    completer.join().unwrap();
    scheduler.wait_empty();
    scheduler.shutdown(DRAIN);
    host.is_over();
    host.expect_all_ended();
}

/// A request comes while the one that it overlaps is completed, and no serving thread comes by at the end of a window, or
/// when a request is overdue, to find what was forgotten.
pub fn a_pair() {
    let mut config = config("to", 2, Driving::Caller);
    (config.engine.window_ns, config.engine.max_wait_ns) = (1_000_000_000_000, 0);
    let host = Checked::new(Completes::Later);
    let scheduler = Scheduler::start(config).unwrap();
    let client = scheduler.attach(host.clone()).unwrap();
    let submit = |cookie| {
        host.submits(request(cookie, 0, Op::Write, 0));
        client.submit(0, request(cookie, 0, Op::Write, 0)).unwrap();
    };
    submit(0);
    let completer = completing(&host, Completes::Later, 2);
    submit(1);
    completer.join().unwrap();
    scheduler.wait_empty();
    host.expect_all_ended();
}

/// A thread that completes so many requests.
fn completing(host: &Arc<Checked>, completes: Completes, count: u32) -> thread::JoinHandle<()> {
    let host = host.clone();
    thread::spawn(move || {
        let mut left = if completes == Completes::Later { count } else { 0 };
        while left > 0 {
            if host.complete_some() {
                left -= 1;
            } else {
                thread::yield_now();
            }
        }
    })
}

#[test]
fn every_request_is_told_once() {
    for policy in POLICIES {
        for driving in [Driving::Caller, Driving::Thread] {
            for completes in [Completes::AtOnce, Completes::InTheCall, Completes::Later] {
                check(60, move || callers(policy, driving, completes));
            }
        }
    }
    check(300, a_pair);
}

/// In the calls for the first requests of two schedulers their threads wait for each other, which get more then.
pub fn crossing() {
    // No thread wakes by itself: see `a_pair`.
    let mut config = config("to", 4, Driving::Thread);
    (config.engine.window_ns, config.engine.max_wait_ns) = (1_000_000_000_000, 0);
    let hosts = [(), ()].map(|()| Checked::new(Completes::AtOnce));
    let schedulers = [(), ()].map(|()| Arc::new(Scheduler::start(config.clone()).unwrap()));
    let clients = [0, 1].map(|own| schedulers[own].attach(hosts[own].clone()).unwrap());
    let entered = Arc::new(AtomicU32::new(0));
    for (own, other) in [(0, 1), (1, 0)] {
        let (other, entered) = (Arc::downgrade(&schedulers[other]), entered.clone());
        let waits = move |request: &Request| {
            if request.cookie == 0 {
                entered.fetch_add(1, Ordering::SeqCst);
                other.upgrade().unwrap().wait_empty();
            }
        };
        *hosts[own].after.lock().unwrap() = Some(Arc::new(waits));
    }
    for cookie in 0..3 {
        for (host, client) in hosts.iter().zip(&clients) {
            host.submits(request(cookie, cookie, Op::Read, 0));
            client.submit(0, request(cookie, cookie, Op::Read, 0)).unwrap();
        }
        while cookie == 0 && entered.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
    }
    schedulers.iter().for_each(|scheduler| scheduler.wait_empty());
    schedulers.iter().for_each(|scheduler| _ = scheduler.shutdown(DRAIN));
    hosts.iter().for_each(|host| host.expect_all_ended());
}

#[test]
fn threads_that_wait_for_each_other_in_calls_go_on_serving() {
    check(300, crossing);
}

/// The engine has a place for one file only: requests for others wait in front of it.
pub fn stalled(driving: Driving) {
    let mut config = config("to", 4, driving);
    config.engine.files_max = 1;
    let host = Checked::new(Completes::Later);
    let scheduler = Scheduler::start(config).unwrap();
    let client = scheduler.attach(host.clone()).unwrap();
    let completer = completing(&host, Completes::Later, 3);
    for cookie in 0..3 {
        let request = request(cookie, cookie, Op::Read, 0);
        host.submits(request);
        client.submit(0, request).unwrap();
    }
    completer.join().unwrap();
    scheduler.wait_empty();
    host.expect_all_ended();
}

#[test]
fn what_the_engine_has_no_room_for_waits_and_goes_on() {
    check(200, || stalled(Driving::Caller));
    check(200, || stalled(Driving::Thread));
}

/// One thread cancels what another one submitted, while a third one completes.
pub fn cancelling(driving: Driving) {
    let host = Checked::new(Completes::Later);
    let scheduler = Scheduler::start(config("to", 8, driving)).unwrap();
    let client = Arc::new(scheduler.attach(host.clone()).unwrap());
    let ids: Vec<_> = (0..3)
        .map(|cookie| {
            // All overlap: one after the other.
            let request = request(cookie, 0, Op::Write, cookie);
            host.submits(request);
            (cookie, client.submit_with_id(0, request).unwrap())
        })
        .collect();
    let finisher = {
        let host = host.clone();
        thread::spawn(move || (0..8).for_each(|_| _ = host.complete_some()))
    };
    for (cookie, id) in ids.into_iter().rev() {
        if client.cancel(0, id).is_ok() {
            host.cancelled_ok(cookie);
        }
    }
    finisher.join().unwrap();
    host.complete_all();
    // What was cancelled gave its place back, once.
    scheduler.wait_empty();
    scheduler.shutdown(Shutdown::Fail(libc::ECANCELED));
    host.is_over();
    host.expect_all_ended();
}

#[test]
fn a_request_is_cancelled_or_told_never_both() {
    check(400, || cancelling(Driving::Caller));
    check(200, || cancelling(Driving::Thread));
}

/// The end comes while threads submit; who was accepted is told before it returns.
pub fn ending(policy: &'static str, driving: Driving, completes: Completes, how: Shutdown) {
    let host = Checked::new(completes);
    let scheduler = Arc::new(Scheduler::start(config(policy, 3, driving)).unwrap());
    let client = Arc::new(scheduler.attach(host.clone()).unwrap());
    let submitters: Vec<_> = (0..2)
        .map(|number| {
            let (client, host) = (client.clone(), host.clone());
            thread::spawn(move || submit_some(&client, &host, number, 3))
        })
        .collect();
    let report = scheduler.shutdown(how);
    host.is_over();
    submitters.into_iter().for_each(|thread| thread.join().unwrap());
    host.expect_all_told();
    while host.complete_some() {}
    host.expect_all_ended();
    if completes == Completes::AtOnce {
        assert_eq!(report.in_flight, 0, "{policy}, {driving:?}, {how:?}");
    }
}

/// The end comes while another thread reports the last completion; who waits for that afterwards does not wait for ever.
pub fn completing_at_the_end(driving: Driving) {
    let host = Checked::new(Completes::Later);
    let scheduler = Arc::new(Scheduler::start(config("to", 3, driving)).unwrap());
    let client = scheduler.attach(host.clone()).unwrap();
    host.submits(request(0, 0, Op::Write, 0));
    client.submit(0, request(0, 0, Op::Write, 0)).unwrap();
    while !host.has_started() {
        thread::yield_now();
    }
    let completer = completing(&host, Completes::Later, 1);
    scheduler.shutdown(Shutdown::Fail(libc::EIO));
    host.is_over();
    completer.join().unwrap();
    scheduler.wait_empty();
    host.expect_all_ended();
}

#[test]
fn a_completion_that_comes_with_the_end_is_counted() {
    for driving in [Driving::Caller, Driving::Thread] {
        check_stopping(2_000, move || completing_at_the_end(driving));
    }
}

#[test]
fn when_the_end_has_come_everybody_was_told() {
    for driving in [Driving::Caller, Driving::Thread] {
        for policy in POLICIES {
            check(60, move || ending(policy, driving, Completes::AtOnce, Shutdown::Fail(libc::EIO)));
            check(60, move || ending(policy, driving, Completes::InTheCall, Shutdown::Fail(libc::EIO)));
            check(60, move || ending(policy, driving, Completes::Later, Shutdown::Fail(libc::EIO)));
            check(60, move || ending(policy, driving, Completes::AtOnce, DRAIN));
        }
    }
}

/// Two clients of one scheduler, of which one leaves while the other goes on.
pub fn leaving(driving: Driving, how: Shutdown) {
    let scheduler = Arc::new(Scheduler::start(config("to", 3, driving)).unwrap());
    let hosts = [Checked::new(Completes::AtOnce), Checked::new(Completes::AtOnce)];
    let attach = |n: usize| Arc::new(scheduler.attach_targets(hosts[n].clone(), n as u32..n as u32 + 1).unwrap());
    let clients = [attach(0), attach(1)];
    let submitters: Vec<_> = (0..2)
        .map(|n| {
            let (client, host) = (clients[n].clone(), hosts[n].clone());
            thread::spawn(move || {
                for cookie in 0..3 {
                    let mut request = request(cookie, 0, Op::Write, 0);
                    request.target.0 = n as u32;
                    host.submits(request);
                    if client.submit(0, request).is_err() {
                        host.refused(cookie);
                    }
                }
            })
        })
        .collect();
    let report = clients[0].detach(how);
    hosts[0].is_over();
    assert_eq!(report.in_flight, 0);
    submitters.into_iter().for_each(|thread| thread.join().unwrap());
    hosts[0].expect_all_ended();
    // Its targets are free again.
    let third = Checked::new(Completes::AtOnce);
    let client = scheduler.attach_targets(third.clone(), 0..1).unwrap();
    let last = request(7, 0, Op::Write, 0);
    third.submits(last);
    client.submit(0, last).unwrap();
    scheduler.shutdown(DRAIN);
    hosts[1].expect_all_ended();
    third.expect_all_ended();
}

#[test]
fn clients_come_and_go() {
    for driving in [Driving::Caller, Driving::Thread] {
        check(150, move || leaving(driving, Shutdown::Fail(libc::EIO)));
        check(150, move || leaving(driving, DRAIN));
    }
}

/// The only client leaves when its last request has ended, which another thread may still be in the call for. Another one asks
/// for counters meanwhile. No serving thread comes by to find who waits.
pub fn leaving_alone(driving: Driving, how: Shutdown) {
    let mut config = config("to", 3, driving);
    (config.engine.window_ns, config.engine.max_wait_ns) = (1_000_000_000_000, 0);
    let host = Checked::new(Completes::Later);
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let client = Arc::new(scheduler.attach(host.clone()).unwrap());
    let submitter = {
        let (client, host) = (client.clone(), host.clone());
        thread::spawn(move || submit_some(&client, &host, 0, 2))
    };
    let asking = {
        let scheduler = scheduler.clone();
        thread::spawn(move || _ = scheduler.snapshot())
    };
    completing(&host, Completes::Later, 2).join().unwrap();
    let report = client.detach(how);
    host.is_over();
    assert_eq!(report.in_flight, 0);
    host.expect_all_ended();
    // Its targets are another's, for whom it does not wait when it leaves once more.
    let second = scheduler.attach(Checked::new(Completes::Later)).unwrap();
    (0..2).for_each(|n| second.try_submit(0, request(10 + n, 0, Op::Write, 0)).unwrap());
    client.detach(how);
    submitter.join().unwrap();
    asking.join().unwrap();
    scheduler.shutdown(Shutdown::Fail(libc::EIO));
}

#[test]
fn a_client_that_is_alone_leaves() {
    for driving in [Driving::Caller, Driving::Thread] {
        check(300, move || leaving_alone(driving, Shutdown::Fail(libc::EIO)));
        check(300, move || leaving_alone(driving, DRAIN));
    }
}

/// A host that submits, cancels, asks and changes the algorithm from inside its calls, on two schedulers.
fn nested(driving: Driving) {
    let hosts = [Checked::new(Completes::AtOnce), Checked::new(Completes::AtOnce)];
    let schedulers = [0, 1].map(|_| Arc::new(Scheduler::start(config("to", 8, driving)).unwrap()));
    let clients = [0, 1].map(|n| Arc::new(schedulers[n].attach(hosts[n].clone()).unwrap()));
    let inside = {
        let (hosts, schedulers, clients) = (hosts.clone(), schedulers.clone(), clients.clone());
        move |here: usize, cookie: u64| {
            if cookie >= 6 {
                return;
            }
            let there = 1 - here;
            let next = request(cookie + 2, 0, Op::Write, 0);
            hosts[there].submits(next);
            if cookie.is_multiple_of(2) {
                clients[there].try_submit(0, next).unwrap();
            } else {
                let id = clients[there].submit_with_id(0, next).unwrap();
                if clients[there].cancel(0, id).is_ok() {
                    hosts[there].cancelled_ok(next.cookie);
                }
            }
            assert!(schedulers[here].snapshot().total.total().submitted() > 0);
            let policy = if cookie.is_multiple_of(2) { "sjf" } else { "noop" };
            schedulers[there].set_policy(&PolicyConfig::parse(policy).unwrap());
        }
    };
    for n in [0, 1] {
        let inside = inside.clone();
        *hosts[n].inside.lock().unwrap() = Some(Arc::new(move |request| inside(n, request.cookie)));
    }
    let threads: Vec<_> = [0, 1]
        .map(|n: usize| {
            let (client, host) = (clients[n].clone(), hosts[n].clone());
            thread::spawn(move || {
                let first = request(n as u64, 0, Op::Write, 0);
                host.submits(first);
                client.submit(0, first).unwrap();
            })
        })
        .into_iter()
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for round in 0..6 {
        schedulers[round % 2].wait_empty();
    }
    drop(inside);
    hosts.iter().for_each(|host| *host.inside.lock().unwrap() = None);
    for n in [0, 1] {
        schedulers[n].shutdown(DRAIN);
        hosts[n].expect_all_ended();
    }
}

#[test]
fn a_host_may_call_anything_from_inside_its_calls() {
    check(150, || nested(Driving::Caller));
    check(150, || nested(Driving::Thread));
}

/// Requests wait for the windows of their targets, and the serving thread sees to that, while others ask: whoever holds the
/// engine when that thread is told of work tells it again when to come.
pub fn windows_of_targets() {
    let mut config = config("twins", 8, Driving::Thread);
    let set = |policy: PolicyConfig, key, value| policy.with(key, value).expect("a parameter");
    let policy = set(config.policy, "servers", "2");
    config.policy = set(set(policy, "window", "2ms"), "alone_after", "0");
    // No end of a window, and no request that is overdue, brings the thread back.
    (config.engine.window_ns, config.engine.max_wait_ns) = (1_000_000_000_000, 0);
    let host = Checked::new(Completes::AtOnce);
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let client = scheduler.attach(host.clone()).unwrap();
    let asking = {
        let scheduler = scheduler.clone();
        thread::spawn(move || (0..3).for_each(|_| _ = scheduler.snapshot()))
    };
    for cookie in 0..4 {
        let mut request = request(cookie, cookie, Op::Read, 0);
        request.target.0 = cookie as u32 % 2;
        host.submits(request);
        client.submit(0, request).unwrap();
    }
    asking.join().unwrap();
    scheduler.wait_empty();
    host.expect_all_ended();
}

#[test]
fn a_deadline_is_kept_whoever_sets_it() {
    check(1_000, windows_of_targets);
    check_stopping(3_000, windows_of_targets);
}

/// Every call waits until nothing is outstanding, once what it was to start is completed. Several are started in one turn.
pub fn waiting_inside() {
    let mut config = config("to", 8, Driving::Caller);
    config.engine.in_flight_max = 4;
    let host = Checked::new(Completes::AtOnce);
    let scheduler = Arc::new(Scheduler::start(config).unwrap());
    let client = Arc::new(scheduler.attach(host.clone()).unwrap());
    let waits = scheduler.clone();
    *host.after.lock().unwrap() = Some(Arc::new(move |_| waits.wait_empty()));
    let threads: Vec<_> = (0..2)
        .map(|thread: u64| {
            let (client, host) = (client.clone(), host.clone());
            thread::spawn(move || {
                let list = [0, 1].map(|n| request(thread * 10 + n, thread * 10 + n, Op::Read, 0));
                list.iter().for_each(|request| host.submits(*request));
                assert_eq!(client.try_submit_list(0, &list), (2, Ok(())));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    scheduler.wait_empty();
    *host.after.lock().unwrap() = None;
    scheduler.shutdown(DRAIN);
    host.expect_all_ended();
}

#[test]
fn calls_that_wait_do_not_wait_for_what_they_have() {
    check(1_500, waiting_inside);
    check_stopping(1_500, waiting_inside);
}
