package main

import (
	"context"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// What real servers do to a resolver, and no plugin of CoreDNS does:
//
//	late TYPE DURATION   answers questions of this type so much later
//	truncated            over UDP says only that the answer is too long for it
func init() {
	plugin.Register("late", func(c *caddy.Controller) error {
		var kind, duration string
		if !c.Next() || !c.Args(&kind, &duration) {
			return plugin.Error("late", c.ArgErr())
		}
		by, err := time.ParseDuration(duration)
		if err != nil {
			return plugin.Error("late", err)
		}
		add(c, func(next plugin.Handler) plugin.Handler { return late{next, dns.StringToType[kind], by} })
		return nil
	})
	plugin.Register("truncated", func(c *caddy.Controller) error {
		add(c, func(next plugin.Handler) plugin.Handler { return truncated{next} })
		return nil
	})
}

func add(c *caddy.Controller, plugin plugin.Plugin) {
	dnsserver.GetConfig(c).AddPlugin(plugin)
}

type late struct {
	next plugin.Handler
	kind uint16
	by   time.Duration
}

func (late) Name() string { return "late" }

func (l late) ServeDNS(ctx context.Context, w dns.ResponseWriter, question *dns.Msg) (int, error) {
	if question.Question[0].Qtype == l.kind {
		time.Sleep(l.by)
	}
	return plugin.NextOrFailure(l.Name(), l.next, ctx, w, question)
}

type truncated struct{ next plugin.Handler }

func (truncated) Name() string { return "truncated" }

func (t truncated) ServeDNS(ctx context.Context, w dns.ResponseWriter, question *dns.Msg) (int, error) {
	if w.RemoteAddr().Network() != "udp" {
		return plugin.NextOrFailure(t.Name(), t.next, ctx, w, question)
	}
	answer := new(dns.Msg)
	answer.SetReply(question)
	// With neither of both a resolver takes it for the answer of a server that does not know the zone.
	answer.Truncated, answer.RecursionAvailable = true, true
	return dns.RcodeSuccess, w.WriteMsg(answer)
}
