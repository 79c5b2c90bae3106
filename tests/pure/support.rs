//! Fixtures that tests of other binaries use as well.

#[path = "../it/support/many_processes.rs"]
pub mod many_processes;
#[path = "../it/support/replay_client.rs"]
pub mod replay_client;
#[path = "../it/support/screen_fixture.rs"]
pub mod screen_fixture;
#[path = "../it/support/training_day.rs"]
pub mod training_day;
