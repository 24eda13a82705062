use std::sync::mpsc::channel;

use super::*;

#[test]
fn threads_that_run_already_end_where_the_system_refuses_the_next_one() {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let clock = Clock::new(ClockKind::Start);
        let policy = PolicyConfig::parse("sjf").unwrap();
        let group = |index| {
            let (bell, engine) = (Bell::new(), Engine::new(EngineConfig::default(), &policy, Time::ZERO).unwrap());
            (bell.clone(), vec![Shard::new(index, clock, engine, Driving::Thread, bell)])
        };
        let refused = start_servers((0..3).map(group).collect(), |number, bell, served| match number {
            2 => Err(std::io::ErrorKind::WouldBlock.into()),
            _ => Server::start("test", bell, clock, Shard::served(&served)),
        });
        tell.send(refused.is_err()).unwrap();
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(120)), Ok(true), "it waits for threads that do not end");
}
