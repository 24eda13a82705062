//! The coordinator as a state machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};
use sluice_adapt::council::Pattern;
use sluice_adapt::orchestrator::Report;
use sluice_core::Time;

use crate::bucket::{Bucket, Rate};
use crate::locality;
use crate::role::{Action, NodeId, Role, To};
use crate::seen::{Kind, Seen, is_name};
use crate::wire::{self, from_node::What};

/// A connection of a node's, as the driver counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Bounds of what nodes may ask of a coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most nodes.
    pub nodes_max: usize,
    /// A node that is silent for so long, in nanoseconds, has left.
    pub silence_ns: u64,
    /// Messages of a node: so many at once, and one more each so many nanoseconds.
    pub burst: u32,
    /// See `burst`.
    pub spacing_ns: u64,
    /// A connection over which nothing goes on for so long, in nanoseconds, is closed.
    pub idle_ns: u64,
}

impl Limits {
    /// Of messages.
    pub(crate) fn rate(self) -> Rate {
        Rate { burst: self.burst, spacing_ns: self.spacing_ns }
    }
}

impl Default for Limits {
    /// 16,384 nodes, 5 s, 64 messages and 20 a second, 10 s. A node sends 11 a second at most (one a second, and one for each window of
    /// 100 ms): what has come while the coordinator did not read, of 5 s after which nodes give it up, is no flood.
    fn default() -> Limits {
        let (silence_ns, idle_ns) = (5_000_000_000, 10_000_000_000);
        Limits { nodes_max: 16_384, silence_ns, burst: 64, spacing_ns: 50_000_000, idle_ns }
    }
}

/// Why a message was not taken: its sender is not to be listened to any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No name.
    #[error("a node's name is 1 to 64 letters, digits and . _ - : /")]
    Name,
    /// There is no room.
    #[error("there are {0} nodes already")]
    Full(usize),
    /// It says too much.
    #[error("more messages than one node may send")]
    Flood,
    /// It says what cannot be.
    #[error("{0} cannot be")]
    Value(&'static str),
}

/// Why a state cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Unusable {
    /// In words.
    pub why: String,
    /// There are roles that could use theirs.
    pub in_part: bool,
}

/// Something that was decided.
#[derive(Clone, PartialEq, Debug)]
struct Decided {
    number: u64,
    action: Action,
}

/// What a node says, if it makes sense.
enum Said<'a> {
    Announcement(Seen, &'a wire::Announcement),
    Locality(Report),
    Farewell,
}

#[derive(Debug)]
struct Member {
    id: NodeId,
    incarnation: u64,
    sequence: u64,
    /// Messages that it may still send at once.
    bucket: Bucket,
    heard: Time,
    joined: Time,
    session: SessionId,
    /// It said good-bye: what comes later was late.
    has_left: bool,
    seen: Option<Seen>,
    offset_ns: i64,
    offset_error_ns: u64,
    carried_out: Vec<wire::Mark>,
    decided: BTreeMap<i32, Decided>,
}

/// Nodes, what they announce, and what the roles make of it. See the [crate](crate).
#[derive(Debug)]
pub struct Coordinator {
    limits: Limits,
    incarnation: u64,
    began: Time,
    roles: Vec<Box<dyn Role>>,
    /// What was kept of roles that it does not have this time.
    others: serde_json::Map<String, Value>,
    members: BTreeMap<String, Member>,
    names: BTreeMap<NodeId, String>,
    joined: u64,
    /// For each kind and role what was last said to all.
    decided: BTreeMap<(Kind, i32), Decided>,
    /// Of the last decision.
    number: u64,
    out: VecDeque<(SessionId, wire::ToNode)>,
    counts: Counts,
    checks_at: Time,
    records: bool,
}

/// What has been, since the coordinator began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Announcements taken.
    pub announcements: u64,
    /// Reports of locality taken.
    pub reports: u64,
    /// Messages that were late or doubled, or of a node that had begun anew since.
    pub stale: u64,
    /// Numbers that are missing between messages: lost, or yet to come.
    pub missing: u64,
    /// Messages refused.
    pub refused: u64,
    /// Decisions of roles, plans among them.
    pub decisions: u64,
    /// Nodes that joined, left, and were silent for too long.
    pub joined: u64,
    /// See `joined`.
    pub left: u64,
    /// See `joined`.
    pub lost: u64,
}

/// What is known of a node.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Option<Kind>,
    /// Seconds since it joined.
    pub for_s: f64,
    /// Seconds since it was heard last.
    pub silent_s: f64,
    /// The coordinator's clock minus its scheduler's, in microseconds, as it estimates.
    pub offset_us: f64,
    /// It is wrong by so much at most; 0: nothing is known yet.
    pub offset_error_us: f64,
    /// The algorithm that it uses.
    pub policy: String,
    /// Length of that one's time windows in microseconds; 0: it has none.
    pub window_us: f64,
    /// It has carried out all that it was told.
    pub is_current: bool,
    /// Requests in its last announcement.
    pub requests: u64,
    /// A million bytes a second while something was under way there; none: nothing was.
    pub busy_mb_s: Option<f64>,
    /// How processes go through their files there, if the node could say.
    pub pattern: Option<Pattern>,
}

/// What a coordinator knows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// Of this coordinator: larger than that of any before.
    pub incarnation: u64,
    /// Seconds since it began.
    pub for_s: f64,
    /// What has been.
    #[serde(flatten)]
    pub counts: Counts,
    /// The roles' own words, by name.
    pub roles: Value,
    /// The nodes, by name.
    pub nodes: Vec<NodeStatus>,
}

impl Coordinator {
    /// One with these roles. `incarnation`: larger than that of any before, like the time.
    #[must_use]
    pub fn new(limits: Limits, incarnation: u64, roles: Vec<Box<dyn Role>>, now: Time) -> Coordinator {
        Coordinator {
            limits,
            incarnation,
            began: now,
            roles,
            others: serde_json::Map::new(),
            members: BTreeMap::new(),
            names: BTreeMap::new(),
            joined: 0,
            decided: BTreeMap::new(),
            number: 0,
            out: VecDeque::new(),
            counts: Counts::default(),
            checks_at: now.after(limits.silence_ns),
            records: false,
        }
    }

    /// Lets nodes tell what they recognise patterns by.
    #[must_use]
    pub fn recording(mut self, records: bool) -> Coordinator {
        self.records = records;
        self
    }

    /// What is to be kept: the text of [`to_text`](crate::to_text) is made of it.
    #[must_use]
    pub fn save(&self) -> Value {
        let own = self.roles.iter().map(|role| (role.kind().as_str_name().to_owned(), role.save()));
        let roles: serde_json::Map<String, Value> = self.others.clone().into_iter().chain(own).collect();
        json!({"incarnation": self.incarnation, "roles": roles})
    }

    /// Takes what was kept. To be called before anything else; the incarnation becomes larger than the kept one.
    ///
    /// # Errors
    /// If something in it cannot be: what. Roles whose states could be used have them then.
    pub fn load(&mut self, saved: &Value) -> Result<(), Unusable> {
        let before = saved["incarnation"].as_u64().filter(|before| *before < u64::MAX);
        let missing = || Unusable { why: "the incarnation is missing".to_owned(), in_part: false };
        let before = before.ok_or_else(missing)?;
        self.incarnation = self.incarnation.max(before + 1);
        let now = self.began;
        let is_other = |name: &String| self.roles.iter().all(|role| role.kind().as_str_name() != name);
        let kept = saved["roles"].as_object().into_iter().flatten();
        self.others =
            kept.filter(|(name, _)| is_other(name)).map(|(name, state)| (name.clone(), state.clone())).collect();
        let of = |role: &mut Box<dyn Role>| {
            let name = role.kind().as_str_name();
            // Without one it was not there then.
            let state = saved["roles"].get(name)?;
            Some(role.load(now, state.clone()).map_err(|why| format!("{name}: {why}")))
        };
        let results: Vec<_> = self.roles.iter_mut().filter_map(of).collect();
        let in_part = !self.others.is_empty() || results.iter().any(Result::is_ok);
        let why: Vec<String> = results.into_iter().filter_map(Result::err).collect();
        if why.is_empty() { Ok(()) } else { Err(Unusable { why: why.join("; "), in_part }) }
    }

    /// Of this coordinator.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// What nodes may ask for.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Counts a message that its driver refused.
    #[cfg(feature = "coordinator")]
    pub(crate) fn refused(&mut self) {
        self.counts.refused += 1;
    }

    /// A message has come. O(log nodes).
    ///
    /// # Errors
    /// If it is none that a node sends: its session is to be ended.
    pub fn receive(&mut self, now: Time, session: SessionId, message: &wire::FromNode) -> Result<(), Refusal> {
        let result = self.take(now, session, message);
        self.counts.refused += u64::from(result.is_err());
        result
    }

    fn take(&mut self, now: Time, session: SessionId, message: &wire::FromNode) -> Result<(), Refusal> {
        if !is_name(&message.name) {
            return Err(Refusal::Name);
        }
        // Before it has any effect.
        let said = match &message.what {
            Some(What::Announcement(said)) => Said::Announcement(Seen::of(said).map_err(Refusal::Value)?, said),
            // Whose it is, is known below.
            Some(What::Locality(said)) => {
                Said::Locality(locality::of(said, 0, message.sequence, now).map_err(Refusal::Value)?)
            }
            Some(What::Leave(_)) => Said::Farewell,
            // Of a later version.
            None => return Ok(()),
        };
        let known = self.members.get(&message.name);
        if known.is_some_and(|known| known.incarnation > message.incarnation) {
            self.counts.stale += 1;
            return Ok(());
        }
        if known.is_none_or(|known| known.incarnation < message.incarnation) {
            let Said::Announcement(..) = &said else { return Ok(()) };
            self.join(now, session, message)?;
        }
        let rate = self.limits.rate();
        let Some(member) = self.members.get_mut(&message.name) else { return Ok(()) };
        member.heard = member.heard.max(now);
        if !member.bucket.take(rate, now) {
            return Err(Refusal::Flood);
        }
        if message.sequence <= member.sequence {
            self.counts.stale += 1;
            return Ok(());
        }
        self.counts.missing = self.counts.missing.saturating_add(message.sequence - member.sequence - 1);
        member.sequence = message.sequence;
        let id = member.id;
        if member.has_left {
            self.counts.stale += 1;
            return Ok(());
        }
        let (seen, said) = match said {
            Said::Announcement(seen, said) => (seen, said),
            Said::Locality(mut report) => {
                report.server = id.0;
                self.counts.reports += 1;
                self.roles.iter_mut().for_each(|role| role.reported(now, id, &report));
                return Ok(());
            }
            Said::Farewell => {
                member.has_left = true;
                self.counts.left += 1;
                self.roles.iter_mut().for_each(|role| role.left(now, id));
                return Ok(());
            }
        };
        member.session = session;
        (member.offset_ns, member.offset_error_ns) = (said.offset_ns, said.offset_error_ns);
        member.carried_out.clear();
        member.carried_out.extend(said.carried_out.iter().take(4));
        self.counts.announcements += 1;
        self.roles.iter_mut().for_each(|role| role.announced(now, id, &seen));
        member.seen = Some(seen);
        let clock = wire::Clock {
            sequence: message.sequence,
            sent_ns: message.sent_ns,
            received_ns: now.0,
            // Filled in when it goes.
            answered_ns: 0,
        };
        self.answer(&message.name, Some(clock));
        Ok(())
    }

    fn join(&mut self, now: Time, session: SessionId, message: &wire::FromNode) -> Result<(), Refusal> {
        // Who joins anew may not say more for that.
        let bucket = self.members.get(&message.name).map(|before| before.bucket);
        self.forget(now, &message.name);
        if self.members.len() >= self.limits.nodes_max {
            return Err(Refusal::Full(self.members.len()));
        }
        self.joined += 1;
        let member = Member {
            id: NodeId(self.joined),
            incarnation: message.incarnation,
            sequence: message.sequence.saturating_sub(1),
            bucket: bucket.unwrap_or_else(|| Bucket::new(self.limits.rate(), now)),
            heard: now,
            joined: now,
            session,
            has_left: false,
            seen: None,
            offset_ns: 0,
            offset_error_ns: 0,
            carried_out: Vec::new(),
            decided: BTreeMap::new(),
        };
        self.counts.joined += 1;
        self.names.insert(member.id, message.name.clone());
        self.members.insert(message.name.clone(), member);
        Ok(())
    }

    /// A node is not there any more.
    fn forget(&mut self, now: Time, name: &str) {
        let Some(member) = self.members.remove(name) else { return };
        self.names.remove(&member.id);
        if !member.has_left {
            self.counts.lost += 1;
            self.roles.iter_mut().for_each(|role| role.left(now, member.id));
        }
    }

    /// For each role the newest decision for a node.
    fn newest<'a>(&'a self, member: &'a Member) -> BTreeMap<i32, &'a Decided> {
        let kind = member.seen.as_ref().map(|seen| seen.kind);
        let to_all =
            self.decided.iter().filter(|((to, _), _)| Some(*to) == kind).map(|((_, role), what)| (*role, what));
        let mut newest: BTreeMap<i32, &Decided> = to_all.collect();
        for (role, own) in &member.decided {
            if newest.get(role).is_none_or(|all| all.number < own.number) {
                newest.insert(*role, own);
            }
        }
        newest
    }

    /// Queues what a node is to know.
    fn answer(&mut self, name: &str, clock: Option<wire::Clock>) {
        let Some(member) = self.members.get(name).filter(|member| !member.has_left) else { return };
        let decision = |(role, decided): (i32, &Decided)| {
            let action = match &decided.action {
                Action::Policy { name, window_ns } => {
                    wire::decision::Action::Policy(wire::Policy { name: name.clone(), window_ns: *window_ns })
                }
                Action::Gate { window_ns, plan } => {
                    wire::decision::Action::Gate(locality::gate_to_wire(*window_ns, plan.as_ref()))
                }
            };
            wire::Decision {
                mark: Some(wire::Mark { role, incarnation: self.incarnation, number: decided.number }),
                action: Some(action),
            }
        };
        let message = wire::ToNode {
            incarnation: self.incarnation,
            node_incarnation: member.incarnation,
            decisions: self.newest(member).into_iter().map(decision).collect(),
            clock,
            records: self.records,
        };
        self.out.push_back((member.session, message));
    }

    /// When [`Coordinator::tick`] is to be called at the latest.
    #[must_use]
    pub fn next(&self) -> Time {
        self.roles.iter().filter_map(|role| role.due()).fold(self.checks_at, Time::min)
    }

    /// Lets roles decide, and forgets who is silent. O(nodes) where that is due or something was decided.
    pub fn tick(&mut self, now: Time) {
        if now >= self.checks_at {
            let silent = |member: &Member| now.since(member.heard) >= self.limits.silence_ns;
            let gone = self.members.iter().filter(|(_, member)| silent(member)).map(|(name, _)| name.clone());
            for name in gone.collect::<Vec<_>>() {
                self.forget(now, &name);
            }
            self.checks_at = now.after(self.limits.silence_ns / 4);
        }
        for at in 0..self.roles.len() {
            let role: i32 = self.roles[at].kind().into();
            let directives = self.roles[at].decide(now);
            if directives.is_empty() {
                continue;
            }
            let mut told = BTreeSet::new();
            for directive in directives {
                told.insert(match directive.to {
                    To::Every(kind) => (Some(kind), None),
                    To::Node(id) => (None, Some(id)),
                });
                self.number += 1;
                self.counts.decisions += 1;
                let decided = Decided { number: self.number, action: directive.action };
                match directive.to {
                    To::Every(kind) => _ = self.decided.insert((kind, role), decided),
                    To::Node(id) => {
                        let member = self.names.get(&id).and_then(|name| self.members.get_mut(name));
                        member.map(|member| member.decided.insert(role, decided));
                    }
                }
            }
            let is_told = |member: &Member| {
                let kind = member.seen.as_ref().map(|seen| seen.kind);
                told.contains(&(kind, None)) || told.contains(&(None, Some(member.id)))
            };
            let names = self.members.iter().filter(|(_, member)| is_told(member)).map(|(name, _)| name.clone());
            for name in names.collect::<Vec<_>>() {
                self.answer(&name, None);
            }
        }
    }

    /// The next message to send, and over which session; one whose session is gone can be dropped.
    pub fn take_answer(&mut self, now: Time) -> Option<(SessionId, wire::ToNode)> {
        let (session, mut message) = self.out.pop_front()?;
        if let Some(clock) = &mut message.clock {
            clock.answered_ns = now.0;
        }
        Some((session, message))
    }

    /// What it knows. O(nodes).
    #[must_use]
    pub fn status(&self, now: Time) -> Status {
        let seconds = |since: Time| now.since(since) as f64 / 1e9;
        let current = |member: &Member| {
            self.newest(member).into_iter().all(|(role, decided)| {
                let has = |mark: &wire::Mark| {
                    mark.role == role && mark.incarnation == self.incarnation && mark.number >= decided.number
                };
                // Plans are renewed more often than nodes announce.
                matches!(decided.action, Action::Gate { .. }) || member.carried_out.iter().any(has)
            })
        };
        let node = |(name, member): (&String, &Member)| NodeStatus {
            name: name.clone(),
            kind: member.seen.as_ref().map(|seen| seen.kind),
            for_s: seconds(member.joined),
            silent_s: seconds(member.heard),
            offset_us: member.offset_ns as f64 / 1e3,
            offset_error_us: member.offset_error_ns as f64 / 1e3,
            policy: member.seen.as_ref().map(|seen| seen.in_force.policy.clone()).unwrap_or_default(),
            window_us: member.seen.as_ref().map_or(0.0, |seen| seen.in_force.window_ns as f64 / 1e3),
            is_current: current(member),
            requests: member.seen.as_ref().map_or(0, Seen::requests),
            busy_mb_s: member.seen.as_ref().and_then(Seen::rate).map(|rate| rate / 1e6),
            pattern: member.seen.as_ref().and_then(|seen| seen.pattern),
        };
        let roles = self.roles.iter().map(|role| {
            let name = role.kind().as_str_name().trim_start_matches("ROLE_").to_lowercase();
            (name, role.status())
        });
        Status {
            incarnation: self.incarnation,
            for_s: seconds(self.began),
            counts: self.counts,
            roles: roles.collect::<serde_json::Map<_, _>>().into(),
            nodes: self.members.iter().filter(|(_, member)| !member.has_left).map(node).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_adapt::orchestrator::Settings;

    use super::*;
    use crate::{Council, Orchestrator, by_rule};

    #[test]
    fn what_has_waited_for_a_coordinator_that_paused_is_no_flood() {
        let mut coordinator = Coordinator::new(Limits::default(), 1, Vec::new(), Time::ZERO);
        let announcement =
            wire::Announcement { kind: wire::Kind::Server.into(), policy: "hbrr".into(), ..Default::default() };
        let mut send = |sequence| {
            let what = Some(What::Announcement(announcement.clone()));
            let message = wire::FromNode { name: "n".into(), incarnation: 1, sequence, sent_ns: 0, what };
            coordinator.receive(Time::ZERO, SessionId(1), &message)
        };
        for sequence in 1..=5 * 11 {
            assert_eq!(send(sequence), Ok(()), "{sequence}");
        }
        let refused = (56..200).map(send).find(Result::is_err);
        assert_eq!(refused, Some(Err(Refusal::Flood)));
    }

    #[test]
    fn of_a_state_that_cannot_be_used_in_part_the_rest_is() {
        let council = || Box::new(Council::new(Box::new(by_rule))) as Box<dyn Role>;
        let orchestrator = || Box::new(Orchestrator::new(Settings::paper())) as Box<dyn Role>;
        let with = |roles| Coordinator::new(Limits::default(), 1, roles, Time::ZERO);
        let mut saved = with(vec![council(), orchestrator()]).save();
        saved["roles"]["ROLE_ORCHESTRATOR"] = json!("nonsense");
        let error = with(vec![council(), orchestrator()]).load(&saved).unwrap_err();
        assert!(error.in_part && error.why.starts_with("ROLE_ORCHESTRATOR: "), "{error:?}");
        assert!(with(vec![orchestrator()]).load(&saved).unwrap_err().in_part, "the council's is kept for another time");
        saved["roles"].as_object_mut().unwrap().remove("ROLE_COUNCIL");
        assert!(!with(vec![orchestrator()]).load(&saved).unwrap_err().in_part);
    }

    #[test]
    fn what_roles_have_learned_that_it_does_not_have_this_time_is_kept() {
        let with = |roles| Coordinator::new(Limits::default(), 1, roles, Time::ZERO);
        let mut saved = with(vec![Box::new(Council::new(Box::new(by_rule)))]).save();
        saved["roles"]["ROLE_ORCHESTRATOR"] = json!({"version": 7});
        let mut again = with(vec![Box::new(Council::new(Box::new(by_rule)))]);
        again.load(&saved).unwrap();
        let after = again.save();
        assert_eq!(after["roles"], saved["roles"]);
        assert!(after["incarnation"].as_u64() > saved["incarnation"].as_u64());
        // And one without roles keeps the council's.
        let mut none = with(Vec::new());
        none.load(&saved).unwrap();
        assert_eq!(none.save()["roles"], saved["roles"]);
    }
}
