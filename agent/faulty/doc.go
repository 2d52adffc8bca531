// Package faulty makes messages of an agent get lost, late, double or refused, so
// that tests can see what is done about it.
//
//	f, err := faulty.New(faulty.Options{Rules: []faulty.Rule{
//		{Types: []string{"rref.fork"}, First: 3, Do: faulty.Fail(nil)},
//		{Func: "example.*", Do: faulty.Delay(time.Second)},
//	}})
//	config.Outgoing = f.Outgoing
//
// What is changed are the messages that leave the agent: requests of its own, unless
// a rule says otherwise, the word that it gives one up, and its answers to those of
// others. Messages to itself count too. All rules that match a message apply to it:
// delays add up, and one that fails it wins over one that loses it.
package faulty
