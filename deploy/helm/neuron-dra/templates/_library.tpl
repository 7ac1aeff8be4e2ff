{{- /* Whether the ResourceClaimSpec at this path requests devices of this driver, reserved ones and adminAccess aside. */ -}}
{{- define "neuron-dra.asksForNeuron" -}}
{{ . }}.?devices.?requests.orValue([]).exists(r,
((has(r.exactly) && !r.exactly.?adminAccess.orValue(false) ? [r.exactly.deviceClassName] : []) +
r.?firstAvailable.orValue([]).map(s, s.deviceClassName)).exists(c,
(c == 'neuron.aws.com' || c.endsWith('.neuron.aws.com')) && c != 'workload.neuron.aws.com'))
{{- end -}}
